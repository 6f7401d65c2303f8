"""Pieces on disk: presence, serving, a full disk, and damaged bytes."""

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
    taken = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("arena-*"))
    assert taken < CHUNK_BYTES < (tmp_path / "arena-1").stat().st_size, "files are sparse"
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
    with (tmp_path / "arena-1").open("r+b") as file:
        file.seek(2 * CHUNK_BYTES)
        file.write(b"other")
    assert refusal(again.chunk, (1, 2)) is Reason.PIECE_MISSING, "a receiver would call it a lie"
    (tmp_path / "manifest").write_bytes(b"\xff" * 100)
    assert store_in(tmp_path, settled=False).manifest is None
    with pytest.raises(StorageError):  # no folder
        store_in(tmp_path / "arena-0")


def test_a_manifest_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    store = store_in(tmp_path, settled=False)
    assert not store.has((0, 0)), "nothing is known yet"
    assert refusal(BlobServer({"text": store}.get).manifest, "text") is Reason.PIECE_MISSING
    other = BlobManifest((replace(MANIFEST.arenas[0], chunk_digests=bytes(32)), MANIFEST.arenas[1]))
    assert refusal(store.settle, other) is Reason.HASH_MISMATCH
    odd = [SHAPES[0], replace(SHAPES[1], elements=9)]
    assert refusal(PieceStore(MANIFEST.digest(), odd, tmp_path).settle, MANIFEST)
