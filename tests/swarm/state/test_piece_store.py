"""Pieces on disk: presence, serving, a full disk, and damaged bytes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.errors import Reason, StorageError
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    BlobManifest,
    bytes_of,
    describe,
    state_digest,
)
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.piece_store import PieceStore
from tests.swarm.refusals import refusal

TOKENS = torch.arange(3 * CHUNK_BYTES // 2 + 5).to(torch.int16).view(torch.uint16)
CONTENT = {"tokenizer": torch.arange(100).byte(), "tokens-00": TOKENS}
SHAPES = [
    ArenaManifest("tokenizer", "uint8", 100, b""),
    ArenaManifest("tokens-00", "uint16", len(TOKENS), b""),
]
MANIFEST = BlobManifest(tuple(describe(name, each) for name, each in CONTENT.items()))
PIECES = [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]


def store_in(folder: Path, settled: bool = True) -> PieceStore:
    store = PieceStore(state_digest(CONTENT), SHAPES, folder)
    if settled:
        store.settle(MANIFEST)
    return store


def raw(piece: tuple[int, int]) -> memoryview:
    whole = bytes_of([*CONTENT.values()][piece[0]])
    return whole[piece[1] * CHUNK_BYTES : (piece[1] + 1) * CHUNK_BYTES]


def test_a_piece_is_here_once_it_is_written_and_served_from_then_on(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.kept == []
    for piece in PIECES[::-2]:
        store.write(piece, raw(piece))
    for piece in PIECES:
        if piece in PIECES[::-2]:
            assert store.chunk(piece) == raw(piece)
        else:
            assert refusal(store.chunk, piece) is Reason.PIECE_MISSING
    assert torch.equal(store.arenas["tokenizer"], CONTENT["tokenizer"])
    assert refusal(store.chunk, (1, 4)) is refusal(store.chunk, (2, 0)) is Reason.NOT_FOUND
    assert store.kept_bytes == sum(len(raw(piece)) for piece in PIECES[::-2])


def test_after_a_restart_only_what_is_right_counts(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    for piece in PIECES[:4]:
        first.write(piece, raw(piece))
    with (tmp_path / "arena-1").open("r+b") as file:  # as a power cut tears it
        file.seek(CHUNK_BYTES + 17)
        file.write(b"torn")
    again = store_in(tmp_path, settled=False)
    assert again.manifest == MANIFEST
    assert sorted(again.kept) == PIECES[:4]
    assert [again.has(piece) for piece in PIECES] == [True, True, False, True, False]
    assert again.chunk((1, 2)) == raw((1, 2))


def test_a_manifest_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    store = store_in(tmp_path, settled=False)
    assert not store.has((0, 0)), "nothing is known yet"
    assert refusal(BlobServer({"text": store}.get).manifest, "text") is Reason.PIECE_MISSING
    other = BlobManifest((describe("tokens-00", TOKENS),))
    assert refusal(store.settle, other) is Reason.HASH_MISMATCH
    odd = [SHAPES[0], replace(SHAPES[1], elements=9)]
    assert refusal(PieceStore(MANIFEST.digest(), odd, tmp_path).settle, MANIFEST)


def test_a_damaged_manifest_on_disk_is_none(tmp_path: Path) -> None:
    store_in(tmp_path)
    (tmp_path / "manifest").write_bytes(b"\xff" * 100)
    assert store_in(tmp_path, settled=False).manifest is None


def test_a_full_disk_is_told_and_what_is_here_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    store.write((0, 0), raw((0, 0)))
    full = Path("/dev/full")
    with monkeypatch.context() as patched:
        patched.setattr(store, "_paths", [full, full])
        with pytest.raises(StorageError, match="the disk is full") as caught:
            store.write((1, 0), raw((1, 0)))
    assert "[state] directory" in caught.value.hint
    assert not store.has((1, 0))
    assert store.chunk((0, 0)) == raw((0, 0))


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError):
        store_in(tmp_path / "file")


def test_what_the_disk_has_damaged_since_is_not_served(tmp_path: Path) -> None:
    """A peer that received it would take it for a lie."""
    store = store_in(tmp_path)
    store.write((1, 0), raw((1, 0)))
    with (tmp_path / "arena-1").open("r+b") as file:
        file.write(b"other")
    assert refusal(store.chunk, (1, 0)) is Reason.PIECE_MISSING


def test_files_are_sparse(tmp_path: Path) -> None:
    store_in(tmp_path)
    taken = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("arena-*"))
    assert taken < CHUNK_BYTES < os.path.getsize(tmp_path / "arena-1")
