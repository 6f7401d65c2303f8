"""Text that comes through the swarm: its description in the manifest, the samples of a joiner, and
messages and refusals before any piece is fetched."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.base.errors import MismatchError, StorageError
from atom.base.reasons import Reason
from atom.config.load import parse_peer_text
from atom.daemon.model import pinning, texts
from atom.daemon.model.texts import content_of, open_store, piece_of, what_comes
from atom.daemon.peer.founding import Membership, enter_run
from atom.models.data.tokenizer import byte_level_tokenizer
from atom.swarm.state.arenas import BlobManifest, describe
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.piece_store import text_blob
from tests.daemon.model.kept_runs import Folder, folder_in
from tests.daemon.tiny_run import GPT3, TEXT
from tests.swarm.refusals import refusal

HELD_BACK = f'{TEXT}\nvalidation_fraction = 0.2\ntokenizer = "tokenizer.json"'
NOTHING = ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer())
    with folder_in(tmp_path) as folder:
        yield folder


def founded(folder: Folder) -> Membership:
    return folder.found(GPT3, data=HELD_BACK)


def joined(folder: Folder, member: Membership, name: str = "b") -> Membership:
    """Enter the run as a joiner without any text."""
    return enter_run(member.manifest, member.record, None, folder.box(name, NOTHING))


def test_a_joiner_with_nothing_trains_on_the_same(folder: Folder) -> None:
    member = founded(folder)
    entered = joined(folder, member)
    store, text = entered.text, member.manifest.text
    assert store is not None
    assert text is not None
    assert entered.samples.digest == member.samples.digest == member.manifest.data_digest
    content = content_of(member.samples)
    donor = BlobServer({text_blob(text.digest): content}.get)
    store.settle(donor.manifest(text_blob(text.digest)))
    for piece in [(0, 0), piece_of(next(member.samples.pieces_from(0)))]:
        store.write(piece, donor.chunk(text_blob(text.digest), *piece))
    for ours, theirs in (
        (entered.samples.batch([0, 5, 3]), member.samples.batch([0, 5, 3])),
        [each.samples.validation_batches("", 2, 2)[1] for each in (entered, member)],
    ):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert bytes(store.arenas["tokenizer"].numpy().data) == member.samples.tokenizer_json


def test_who_names_a_copy_fetches_nothing(folder: Folder) -> None:
    member = founded(folder)
    named = 'paths = ["text.txt"]\ntokenizer = "tokenizer.json"'
    assert enter_run(member.manifest, member.record, None, folder.box("b", named)).text is None


def test_a_large_text_is_each_peers_own_unless_the_owner_says_otherwise(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "MOST_SHARED_BYTES", 10)
    assert folder.found(GPT3).manifest.text is None
    asked = folder.found(GPT3, name="c", data=f'{TEXT}\nshare = "swarm"')
    assert asked.manifest.text is not None


def test_another_text_than_the_manifest_names_is_refused(folder: Folder) -> None:
    member = founded(folder)
    entered = joined(folder, member)
    assert entered.text is not None
    other = BlobManifest((describe("tokens-00", torch.zeros(9).byte()),))
    assert refusal(entered.text.settle, other) is Reason.HASH_MISMATCH
    lying = replace(member.manifest, data_digest="0" * 64)
    with pytest.raises(MismatchError, match="training data"):
        enter_run(lying, b"", None, folder.box("c", NOTHING))


def test_what_will_come_is_said_beforehand(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    member = founded(folder)
    peer = parse_peer_text('[network]\ndownload = "8 kbit/s"', tmp_path)
    said = what_comes(member.manifest, peer, tmp_path)
    assert re.search(r"takes \d s at 0.008 Mbit/s", said)
    assert str(tmp_path) in said
    monkeypatch.setattr(texts.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(StorageError, match="100 B are free") as caught:
        what_comes(member.manifest, peer, tmp_path)
    assert "[state] directory" in caught.value.hint


def test_what_is_here_already_is_said(folder: Folder) -> None:
    member = founded(folder)
    text, box = member.manifest.text, folder.box("b", NOTHING)
    assert text is not None
    store = open_store(text, box.state.tokens)
    content = content_of(member.samples)
    for number, name in enumerate(content):
        store.write((number, 0), memoryview(content[name].numpy().tobytes()))
    assert "already" in what_comes(member.manifest, box.peer, box.state.tokens)
