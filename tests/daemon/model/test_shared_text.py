"""Text that comes through the swarm: its description in the manifest, the samples of a joiner, and
messages and refusals before any piece is fetched."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.base.errors import MismatchError, Reason, StorageError
from atom.daemon.model import pinning, texts
from atom.daemon.model.texts import content_of, open_store, what_comes
from atom.daemon.peer.founding import Membership, enter_run
from atom.models.data.tokenizer import byte_level_tokenizer
from atom.swarm.state.arenas import BlobManifest, describe
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
    assert str(tmp_path) in what_comes(member.manifest, tmp_path)
    monkeypatch.setattr(texts.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(StorageError, match="100 B are free") as caught:
        what_comes(member.manifest, tmp_path)
    assert "[state] directory" in caught.value.hint


def test_what_is_here_already_is_said(folder: Folder) -> None:
    member = founded(folder)
    text, box = member.manifest.text, folder.box("b", NOTHING)
    assert text is not None
    store = open_store(text, box.state.tokens)
    content = content_of(member.samples)
    for number, name in enumerate(content):
        store.write((number, 0), memoryview(content[name].numpy().tobytes()))
    assert "already" in what_comes(member.manifest, box.state.tokens)
