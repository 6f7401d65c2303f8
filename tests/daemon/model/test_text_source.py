"""From a run file's [data] to its text; and who has other data hears how much the run has."""

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from atom.base.errors import AddressError, ConfigError, MismatchError, StorageError
from atom.config.load import load_run_file
from atom.config.model_and_data import Data
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.console import Silence
from atom.daemon.model import text_source
from atom.daemon.model.text_source import check_data, pin_table
from atom.daemon.peer.box import Box, StartOptions, open_box
from atom.daemon.peer.founding import Membership, enter_run, found_run
from atom.models.data.files import text_corpus
from atom.models.data.samples import Samples, text_samples
from atom.models.source import DataUnreachable, NoRoomForData
from atom.swarm.records.manifest import Manifest
from tests.daemon.tiny_run import GPT3, run_text

ROWS = [{"body": "A peer gives what it has, and takes its part."}] * 40
TABLE = 'source = "datasets"\npath = "owner/name"\ntext_field = "body"'
REVISION = "a" * 40


class Machine:
    """A folder with a run of a table of the hub, and the hub."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.newest = REVISION
        self.boxes: list[Box] = []
        monkeypatch.setattr(text_source, "newest_revision", lambda path: self.newest)
        monkeypatch.setattr(datasets, "load_dataset_builder", self._builder)

    def run(self, data: str = TABLE) -> RunFile:
        (self.root / "run.toml").write_text(run_text("table", GPT3, data))
        return load_run_file(self.root / "run.toml")

    def found(self, run: RunFile) -> Membership:
        return found_run(StartOptions(self.root / "run.toml"), self.box("a"), run)

    def box(self, name: str, path: str | None = None) -> Box:
        peer = self.root / f"{name}.toml"
        more = "" if path is None else f'[data]\npath = "{path}"\n'
        peer.write_text(f'[device]\nkind = "cpu"\ncpu_threads = 1\n{more}')
        self.boxes.append(open_box("table", peer, self.root / name))
        return self.boxes[-1]

    def _builder(self, path: str, name: str | None, revision: str) -> SimpleNamespace:
        assert (path, revision) == ("owner/name", REVISION)
        return SimpleNamespace(
            config=SimpleNamespace(data_files=None),
            download_and_prepare=lambda: None,
            as_dataset=lambda split: datasets.Dataset.from_list(ROWS),
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Machine(tmp_path, monkeypatch)
    yield made
    for box in made.boxes:
        box.state.unlock()


def test_a_table_is_the_same_for_everybody_who_takes_part(machine: Machine) -> None:
    run = machine.run()
    member = machine.found(run)
    assert member.run.data.revision == REVISION
    machine.boxes.pop().state.unlock()
    machine.newest = "b" * 40
    assert machine.found(run).manifest == member.manifest

    datasets.Dataset.from_list(ROWS).save_to_disk(machine.root / "copy")
    entered = enter_run(member.manifest, member.record, None, machine.box("b", "copy"))
    assert entered.samples.digest == member.samples.digest
    with pytest.raises(ConfigError, match=r"trains on 'owner/name'") as caught:
        enter_run(member.manifest, member.record, None, machine.box("c"))
    assert "path = … under [data]" in caught.value.hint


def test_only_what_is_of_the_hub_gets_a_revision(machine: Machine) -> None:
    root, peer = machine.root, PeerFile()
    given = machine.run(f'{TABLE}\nrevision = "{"c" * 40}"')
    assert pin_table(given, peer, root, None) == given
    assert pin_table(machine.run(), peer, root, given) == given
    text = machine.run('source = "python-stdlib"')
    assert pin_table(text, peer, root, None) == text
    (root / "owner" / "name").mkdir(parents=True)
    assert pin_table(machine.run(), peer, root, None).data.revision is None


def test_a_hub_that_cannot_be_asked_is_told_with_the_key(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: str) -> str:
        raise DataUnreachable(f"{path} is not there", "look")

    monkeypatch.setattr(text_source, "newest_revision", gone)
    with pytest.raises(AddressError, match=r"data\.path: owner/name is not there") as caught:
        pin_table(machine.run(), PeerFile(), machine.root, None)
    assert caught.value.hint == "look"

    def broken(*arguments: object, **named: object) -> None:
        raise DataUnreachable("the stream broke", "start again")

    monkeypatch.setattr(text_source, "text_samples", broken)
    run, cache = machine.run('source = "python-stdlib"'), machine.root / "tokens"
    with pytest.raises(AddressError, match="the stream broke") as caught:
        text_source.open_text(run, PeerFile(), machine.root, cache, Silence().progress)
    assert caught.value.hint == "start again", "a service does"


def test_a_full_disk_is_named_with_the_folder(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(text_source, "text_samples", full)
    run, cache = machine.run('source = "python-stdlib"'), machine.root / "tokens"
    with pytest.raises(StorageError, match=f"tokens of the text into {cache}: the disk is full"):
        text_source.open_text(run, PeerFile(), machine.root, cache, Silence().progress)

    def no_copy(*arguments: object, **named: object) -> None:
        raise NoRoomForData("the table cannot be copied", "set HF_HOME")

    monkeypatch.setattr(text_source, "text_samples", no_copy)
    with pytest.raises(StorageError, match="the table cannot be copied") as caught:
        text_source.open_text(run, PeerFile(), machine.root, cache, Silence().progress)
    assert caught.value.hint == "set HF_HOME"


def a_manifest(data_digest: str, amount: tuple[int, int, int] | None = None) -> Manifest:
    return Manifest(
        "run", "owner", "", "", "", (), data_digest, b"s" * 32, b"i" * 16, 1.0, amount
    )  # fmt: skip


def samples_of(text: str, folder: Path, held_out: float = 0.0) -> Samples:
    (folder / "text.txt").write_text(text)
    return text_samples(
        text_corpus([folder / "text.txt"]), "bytes", validation_fraction=held_out,
        sequence_tokens=8, seed=1, cache_folder=folder,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"source": "text", "paths": ("a.txt", "more/*")}, "the founder named a.txt, more/*"),
        ({"source": "python-stdlib"}, "founder's build of Python"),
        ({"source": "datasets", "path": "owner/name"}, "the founder's table owner/name"),
        ({"source": "module"}, "the dataset of the owner's module"),
    ],
)
def test_what_is_here_and_what_is_wanted(
    data: dict[str, object], wanted: str, tmp_path: Path
) -> None:
    section = Data.model_validate(data)
    samples = samples_of("a peer gives " * 100, tmp_path)
    for equal in (samples.digest, ""):
        check_data(samples, section, a_manifest(equal))
    with pytest.raises(MismatchError, match="here are 1,300 tokens, 162 sequences to") as refused:
        check_data(samples, section, a_manifest("another"))
    assert wanted in refused.value.hint


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ((1313, 164, 0), "to train on; the run has 1,313 tokens, 164 sequences to train on"),
        ((1300, 162, 0), "162 sequences to train on, as many, but others"),
        (None, "162 sequences to train on"),
    ],
)
def test_how_much_the_run_has(
    amount: tuple[int, int, int] | None, said: str, tmp_path: Path
) -> None:
    manifest = a_manifest("another", amount)
    section = Data.model_validate({"source": "python-stdlib"})
    with pytest.raises(MismatchError) as refused:
        check_data(samples_of("a peer gives " * 100, tmp_path), section, manifest)
    assert refused.value.message.endswith(said)


def test_what_is_held_back_is_told_beside(tmp_path: Path) -> None:
    told = samples_of("a peer gives " * 100, tmp_path, held_out=0.5).amount
    assert str(told) == "650 tokens, 81 sequences to train on, 650 tokens held back"
    one = samples_of("nine bytes"[:9], tmp_path).amount
    assert str(one) == "9 tokens, 1 sequence to train on"
