"""Tables of `datasets`: saved folders, folders of files, and a simulated hub."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from atom.base.errors import AddressError, ConfigError, StorageError
from atom.models.data.corpus import Corpus, Reading, text_corpus
from atom.models.data.rows import RowText
from atom.models.data.stored_dataset import StoredDataset
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.source import install_extra

TEXTS = ["one", "zwei é", "", "three\nlines", "last"]
REVISION = "a" * 40
BODY, ID = RowText(text_field="body"), RowText(text_field="id")
HUB = StoredDataset("owner/name", revision=REVISION)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    table = datasets.Dataset.from_dict({"id": range(6), "text": [*TEXTS, None]})
    for name in ("mine", "held-out"):
        table.save_to_disk(root / "several" / name)
    table.save_to_disk(root / "saved")
    datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(root / "splits")
    table.with_format("numpy", columns=["id"]).save_to_disk(root / "shown as numbers")
    Path(root / "known.txt").write_text("one\ntwo\nthree\n")
    known = datasets.load_dataset(
        "text",
        data_files={"validation": str(root / "known.txt")},
        split="validation[:2]",
        cache_dir=str(root / "hf"),
    )
    known.save_to_disk(root / "known")
    both = datasets.load_dataset(
        "text",
        data_files={split: str(root / "known.txt") for split in ("train", "test")},
        split="train+test",
        cache_dir=str(root / "hf"),
    )
    both.save_to_disk(root / "both")
    (root / "files").mkdir()
    raw = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS)
    (root / "files" / "train.jsonl").write_text(raw)
    (root / "broken").mkdir()
    (root / "broken" / "train.jsonl").write_text('{"text": "one"}\nnonsense\n')
    (root / "packed").mkdir()
    (root / "packed" / "train.jsonl.gz").write_bytes(gzip.compress(raw.encode()))
    return root


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the hub by an object with the recorded requests and settable faults."""
    played = SimpleNamespace(asked=[], files=[f"hf://datasets/owner/name@{REVISION}/a.parquet"])
    datasets.Dataset.from_dict({"text": TEXTS}).to_parquet(tmp_path / "a.parquet")
    played.download = lambda file: str(tmp_path / "a.parquet")

    def builder(path: str, name: str | None, revision: str) -> SimpleNamespace:
        played.asked.append((path, name, revision))
        return SimpleNamespace(config=SimpleNamespace(data_files={"train": played.files}))

    def manager() -> SimpleNamespace:
        return SimpleNamespace(download=played.download)

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(datasets, "DownloadManager", manager)
    return played


def contents(corpus: Corpus) -> list[bytes]:
    return [b"".join(blocks) for blocks in Reading(corpus).texts()]


@pytest.mark.parametrize("kind", ["saved", "splits", "files", "packed", "shown as numbers"])
def test_local_folders_give_their_texts(folders: Path, tmp_path: Path, kind: str) -> None:
    corpus = StoredDataset(str(folders / kind)).corpus()
    assert contents(corpus) == [text.encode() for text in TEXTS if text]
    for index, text in enumerate(TEXTS):
        (tmp_path / f"{index}.txt").write_text(text)
    assert corpus.survey().digest() == text_corpus([tmp_path / "*.txt"]).survey().digest()


def test_another_split_and_a_limit(folders: Path) -> None:
    stored = StoredDataset(str(folders / "splits"), split="test")
    assert contents(stored.corpus()) == [b"one"]
    stored = StoredDataset(str(folders / "files"))
    assert contents(stored.corpus(8)) == [b"one", b"zwei "]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_saved_table_that_knows_its_split(folders: Path, split: str) -> None:
    corpus = StoredDataset(str(folders / "known"), split=split).corpus()
    assert contents(corpus) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("kind", "changes", "said", "hint"),
    [
        ("gone", {}, "no such folder", "OWNER/NAME"),
        ("splits", {"split": "tst"}, "no split \"tst\"; it has 'test', 'train'", "split ="),
        ("several", {}, "contains tables such as", "merge all of them"),
        ("known", {"split": "test"}, "no split \"test\"; it has 'train', 'validation'", "split"),
        ("both", {"split": "test"}, "it has 'train', 'train+test'", "split ="),
        ("files", {"split": "test"}, "no split \"test\"; it has 'train'", "[data] split"),
        ("files", {"name": "other"}, "'other' not found", "name in the run file"),
        ("files", {"rows": BODY}, "no column \"body\"; it has 'id', 'text'", "text_field"),
        (
            "saved",
            {"rows": RowText(text_field="id")},
            '.arrow, row 1: "id" holds int',
            "text_field",
        ),
        (".", {}, "cannot be read", "save_to_disk"),
        ("broken", {}, "train.jsonl, row 2: not JSON: Expecting value", "bad_rows"),
    ],
)
def test_what_is_wrong_is_named(
    folders: Path, tmp_path: Path, kind: str, changes: dict[str, object], said: str, hint: str
) -> None:
    folder = tmp_path if kind == "." else folders / kind
    with pytest.raises(ConfigError) as caught:
        contents(StoredDataset(str(folder), **changes).corpus())
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert not isinstance(caught.value, AddressError)


@pytest.mark.parametrize("name", ["train.jsonl", "train.txt", "train.csv"])
def test_files_without_a_byte_are_told_as_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match="all empty"):
        StoredDataset(str(tmp_path)).corpus().survey()


def test_a_saved_table_without_rows_is_told_as_empty(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ConfigError, match="all empty"):
        StoredDataset(str(tmp_path / "saved")).corpus().survey()


def test_a_library_without_room_for_its_copy_is_told_as_that(
    hub: SimpleNamespace,
) -> None:
    def full(file: str) -> None:
        raise OSError(28, "No space left on device")

    hub.download = full
    with pytest.raises(StorageError, match=r"copied to .*hf: No space left") as caught:
        contents(HUB.corpus())
    assert "HF_HOME" in caught.value.hint


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="owner/name needs another package") as caught:
        contents(HUB.corpus())
    assert install_extra("data") in caught.value.hint


def test_a_hub_that_breaks_off_may_be_asked_again(hub: SimpleNamespace, tmp_path: Path) -> None:
    def broken(file: str) -> None:
        raise ConnectionError("the hub is gone")

    whole, hub.download = hub.download, broken
    with pytest.raises(AddressError, match="the hub is gone"):
        cached_tokens(HUB.corpus(), ByteTokenizer(), tmp_path / "c")
    hub.download = whole
    tokens = cached_tokens(HUB.corpus(20), ByteTokenizer(), tmp_path / "c").tokens
    assert bytes(tokens.tolist()) == "one\nzwei é\nthree\nline".encode()
    assert set(hub.asked) == {("owner/name", None, REVISION)}


@pytest.mark.parametrize("file", ["/etc/passwd", "hf://datasets/owner/other@x/a", "https://a/b"])
def test_a_hubs_dataset_opens_its_own_files_only(hub: SimpleNamespace, file: str) -> None:
    hub.files.append(file)
    with pytest.raises(ConfigError, match="not its own"):
        contents(HUB.corpus())


@pytest.mark.parametrize("place", ["..", "absolute"])
def test_a_folder_opens_its_own_files_only(tmp_path: Path, place: str) -> None:
    """A folder from a stranger may name a private file: it would become the run's text."""
    (tmp_path / "private.csv").write_text("text\nsecret\n")
    table = tmp_path / "table"
    table.mkdir()
    (table / "own.csv").write_text("text\nhello\n")
    named = (tmp_path if place == "absolute" else Path(place)) / "private.csv"
    readme = "---\nconfigs:\n- config_name: default\n  data_files: {files}\n---\n"
    (table / "README.md").write_text(readme.format(files="own.csv"))
    assert contents(StoredDataset(str(table)).corpus()) == [b"hello"]
    (table / "README.md").write_text(readme.format(files=named))
    with pytest.raises(ConfigError, match="not its own"):
        contents(StoredDataset(str(table)).corpus())


def test_a_saved_table_opens_its_own_files_only(tmp_path: Path) -> None:
    """Such a folder may name a private table: it would become the run's text."""
    private, given = tmp_path / "private", tmp_path / "given"
    for folder, text in ((private, "secret"), (given, "hello")):
        datasets.Dataset.from_dict({"text": [text]}).save_to_disk(folder)
    assert contents(StoredDataset(str(given)).corpus()) == [b"hello"]
    state = json.loads((given / "state.json").read_text())
    (own,) = state["_data_files"]
    for place in (str(private), "../private"):
        named = state | {"_data_files": [{"filename": f"{place}/{own['filename']}"}]}
        (given / "state.json").write_text(json.dumps(named))
        with pytest.raises(ConfigError, match="not its own"):
            contents(StoredDataset(str(given)).corpus())


def test_a_folder_of_a_hubs_name_is_not_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a path in the working directory"):
        contents(HUB.corpus())
