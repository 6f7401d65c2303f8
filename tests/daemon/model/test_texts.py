"""Reading the text that a run file's [data] names, and refusing data that differ from the run's."""

import json
from collections.abc import Iterator
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch

from atom.base.errors import ConfigError, MismatchError, StorageError
from atom.config.load import normalised_run_text, pinned_run
from atom.config.model_and_data import Data
from atom.config.peer_file import PeerFile
from atom.config.run_file import PinnedRun, RunFile
from atom.config.sources import text_sources
from atom.daemon.model import texts
from atom.daemon.model.pinning import agreed_run, pin, pin_for_plan
from atom.daemon.model.texts import (
    check_data,
    described,
    open_samples,
    open_store,
    pinned_tables,
    shared_texts,
)
from atom.daemon.peer.founding import enter_run
from atom.models.data.corpus import silent, text_corpus
from atom.models.data.samples import Cut, Text, token_samples
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import ByteTokenizer, byte_level_tokenizer
from atom.swarm.identity import Identity
from tests.daemon.model.kept_runs import CONFIG, Folder, folder_in
from tests.daemon.silence import Notes
from tests.daemon.tiny_run import GPT3, LLAMA, TEXT
from tests.models.chat_tokenizer import chat_tokenizer
from tests.swarm.swarm_samples import a_manifest

ROWS = [{"body": "A peer gives what it has, and takes its part."}] * 40
TABLE = 'source = "datasets"\npath = "owner/name"\ntext_field = "body"'
PYTHON = 'source = "python-stdlib"'
REVISION = "a" * 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    def builder(path: str, name: str | None, revision: str) -> SimpleNamespace:
        assert (path, revision) == ("owner/name", REVISION)
        files = {"train": [f"hf://datasets/{path}@{REVISION}/a.parquet"]}
        return SimpleNamespace(config=SimpleNamespace(data_files=files))

    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    manager = SimpleNamespace(download=lambda file: str(tmp_path / "a.parquet"))
    monkeypatch.setattr(datasets, "DownloadManager", lambda: manager)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(texts, "newest_revision", lambda path, kind: REVISION)
    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    with folder_in(tmp_path) as folder:
        yield folder


def pinned(run: RunFile, root: Path, kept: PinnedRun | None = None) -> Data:
    return pinned_tables(run.data, text_sources(run, PeerFile(), root), kept)


def test_a_table_is_the_same_for_everybody_who_takes_part(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = folder.found(GPT3, data=TABLE)
    assert member.run.data.revision == REVISION
    monkeypatch.setattr(texts, "newest_revision", lambda path, kind: "b" * 40)
    assert folder.found(GPT3, data=TABLE).manifest == member.manifest

    datasets.Dataset.from_list(ROWS).save_to_disk(folder.root / "copy")
    entered = enter_run(member.manifest, member.record, None, folder.box("b", 'path = "copy"'))
    assert entered.samples.digest == member.samples.digest
    own_copy = f'{TABLE}\nrevision = "{REVISION}"\nshare = "own-copy"'
    own = folder.found(GPT3, data=own_copy, name="own")
    with pytest.raises(ConfigError, match=r"trains on .*'owner/name'") as caught:
        enter_run(own.manifest, own.record, None, folder.box("c"))
    assert 'path = "owner/name"' in caught.value.hint


MIX = """\
validation_fraction = 0.1
[data.sources.talk]
source = "datasets"
path = "owner/name"
text_field = "body"
weight = 3
[data.sources.words]
paths = ["text.txt"]
[data.sources.exam]
source = "python-stdlib"
max_bytes = "9 kB"
weight = 0
"""


def test_several_texts_are_mixed_alike_by_everybody(folder: Folder) -> None:
    member = folder.found(GPT3, data=MIX)
    revisions = {name: text.revision for name, text in member.run.data.texts.items()}
    assert revisions == {"talk": REVISION, "words": None, "exam": None}
    assert folder.found(GPT3, data=MIX).manifest == member.manifest
    copies = '[data.sources.talk]\npath = "copy"\n[data.sources.words]\npaths = ["text.txt"]'
    datasets.Dataset.from_list(ROWS).save_to_disk(folder.root / "copy")
    entered = enter_run(member.manifest, member.record, None, folder.box("b", copies))
    assert entered.samples.digest == member.samples.digest
    mine, theirs = (each.samples.batch(range(16))["tokens"] for each in (member, entered))
    assert torch.equal(mine, theirs)
    assert list(member.samples.validation) == ["talk", "words", "exam"]
    for name in member.samples.validation:
        batches = (each.samples.validation_batches(name, 1, 4)[0] for each in (member, entered))
        assert torch.equal(*(batch["tokens"] for batch in batches))


def test_the_founder_has_the_run_that_joiners_read(folder: Folder) -> None:
    for vocabulary, wanted in (("", 256), ("vocabulary_size = 300", 300)):
        run = folder.run(f"{GPT3}\n{vocabulary}", MIX)
        found, _, _ = pin(run, folder.root, PeerFile(), folder.root / "tokens", silent)
        assert found.model.vocabulary_size == wanted
        assert found.data.tokenizer_sha256 == ByteTokenizer.digest
        assert found == pinned_run(normalised_run_text(found))


def test_tokens_that_occur_count_and_not_the_declared_ones(folder: Folder) -> None:
    """A model may have fewer tokens than its tokenizer, such as one without the added pad token."""
    (folder.root / "tokenizer.json").write_text(byte_level_tokenizer())
    data = f'{TEXT}\ntokenizer = "tokenizer.json"'
    with pytest.raises(ConfigError, match=r"the text has token 1.*ends at 99"):
        folder.found(f"{GPT3}\nvocabulary_size = 100", data=data)
    member = folder.found(f"{GPT3}\nvocabulary_size = 128", "c", data=data)
    batch = member.samples.batch(range(4))
    assert member.replica.run_pass([batch]) == 4
    (file,) = member.samples.files
    file.tokens.fill_(128)  # as a stranger's text may have
    with pytest.raises(ConfigError, match=r"the text has token 128, but .* ends at 127"):
        member.samples.batch([0])


def test_only_what_is_of_the_hub_gets_a_revision(folder: Folder) -> None:
    given = folder.run(GPT3, f'{TABLE}\nrevision = "{"c" * 40}"')
    assert pinned(given, folder.root) == given.data
    table = folder.run(GPT3, TABLE)
    kept, _ = pin_for_plan(given, folder.root, PeerFile())
    assert pinned(table, folder.root, kept) == given.data
    text = folder.run(GPT3, PYTHON)
    assert pinned(text, folder.root) == text.data
    (folder.root / "owner" / "name").mkdir(parents=True)
    assert pinned(table, folder.root).revision is None


def test_a_full_disk_of_the_tokens_is_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object, **named: object) -> None:
        raise OSError(ENOSPC, "full")

    monkeypatch.setattr(texts, "cached_tokens", failing)
    with pytest.raises(StorageError, match=r"into .*: the disk is full") as caught:
        folder.found(GPT3, data=PYTHON)
    assert "--state DIR" in caught.value.hint


def test_who_has_other_data_hears_how_much_there_is_and_what_to_get(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a peer gives " * 100)
    coder = ByteTokenizer()
    file = cached_tokens(text_corpus([tmp_path / "text.txt"]), coder, tmp_path)
    samples = token_samples([Text(file)], coder, Cut(0.0, 8, 4096), 1)
    owner = Identity.create()
    for equal in (samples.digest, ""):
        check_data(samples, a_manifest(owner, data_digest=equal))
    for amount, said in (
        (1313, "; the run has 1,313 tokens, 162"),
        (1300, ", as many, but different"),
    ):
        manifest = a_manifest(owner, data_digest="another", data_amount=(amount, 162, 0))
        with pytest.raises(MismatchError, match="they are 1,300 tokens, 162 .*" + said) as refused:
            check_data(samples, manifest)
        assert "get the founder's data" in refused.value.hint


def test_a_run_that_learns_answers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    roles = [("user", "How much does a peer give?"), ("assistant", "What it has.")]
    chat = [{"role": role, "content": text} for role, text in roles]
    datasets.Dataset.from_list([{"messages": chat}] * 40).save_to_disk(tmp_path / "table")
    chat_tokenizer(tmp_path / "tokenizer")
    data = (
        'source = "datasets"\npath = "table"\ntrain_on = "answers"\n'
        'tokenizer = "tokenizer/tokenizer.json"'
    )
    with folder_in(tmp_path, config=CONFIG | {"vocab_size": 259}) as folder:
        folder.console = console = Notes()
        member = folder.found(LLAMA, data=data)
        assert "ends with <|endoftext|> (258); an answer ends with <|im_end|> (257)" in "".join(
            console.notes
        )
        assert member.run.data.answer_ends == (257, 258)
        share = member.run.data.answer_share
        assert share is not None
        assert 0 < share < 0.5
        batch = member.samples.batch(range(4))
        assert batch["target_share"].tolist() == pytest.approx([share] * 4)
        assert member.replica.run_pass([batch]) == 4
        with pytest.raises(ConfigError, match="only models of transformers"):
            folder.found(f"{GPT3}\nvocabulary_size = 259", "c", data=data)
        mine = 'path = "table"\ntokenizer = "tokenizer/tokenizer.json"'
        joined = enter_run(member.manifest, member.record, None, folder.box("b", mine))
    assert joined.samples.digest == member.samples.digest


def test_a_run_whose_documents_are_apart(tmp_path: Path) -> None:
    path, bare = chat_tokenizer(tmp_path / "tokenizer"), tmp_path / "bare.json"
    bare.write_text(byte_level_tokenizer())
    text = 'source = "text"\npaths = ["text.txt"]\nattention = "documents"'
    data = f'{text}\ntokenizer = "{path}"'
    with folder_in(tmp_path, config=CONFIG | {"vocab_size": 259}) as folder:
        for documents in "one", "many":
            if documents == "many":
                (folder.root / "text.txt").unlink()
                (folder.root / "text.txt").mkdir()
                for number in range(40):
                    short = folder.root / "text.txt" / f"{number:02}"
                    short.write_text("Apart."[: number % 6 + 1])
            member = folder.found(LLAMA, documents, data=data)
            batch = member.samples.batch(range(4))
            alone = bool((batch["position_ids"] == torch.arange(8)).all())
            assert alone == (documents == "one")
            assert member.replica.run_pass([batch]) == 4
        assert member.run.data.end_token == 258
        store = open_store(described(member.samples), tmp_path / "store")
        arriving = shared_texts(member.run, described(member.samples), store)
        shared = open_samples(member.run, member.recipe.source, arriving)
        assert shared.digest == member.samples.digest
        assert shared.train[""].batch([0])["positions"].shape == (1, 8)
        endless = member.run.data.model_copy(update={"end_token": None})
        lacking = normalised_run_text(member.run.model_copy(update={"data": endless}))
        with pytest.raises(ConfigError, match=r"data\.end_token: is missing"):
            agreed_run(replace(member.manifest, run_file=lacking))
        with pytest.raises(ConfigError, match="only models of transformers can attend"):
            folder.found(f"{GPT3}\nvocabulary_size = 259", "c", data=data)
        with pytest.raises(ConfigError, match="no end-of-text token"):
            folder.found(LLAMA, "d", data=f'{text}\ntokenizer = "{bare}"')


def test_a_run_file_says_what_may_be_omitted_and_the_start_tells_what_was(folder: Folder) -> None:
    rows = "id,q,a\n1,good,good\n2,bad\n3,f\xe9,f\xe9\n" + "4,more,more\n" * 99
    (folder.root / "in").mkdir()
    (folder.root / "in" / "a.csv").write_bytes(rows.encode("windows-1252"))
    table = 'source = "datasets"\npath = "./in/a.csv"\ntext_field = "a"'
    named, skip = 'encoding = "windows-1252"', 'bad_rows = "skip"'
    with pytest.raises(ConfigError, match=r"a\.csv is not UTF-8 text: byte 28 is 0xe9") as caught:
        folder.found(GPT3, data=table)
    assert named in caught.value.hint
    with pytest.raises(ConfigError, match=r"a\.csv, row 2: another number of fields") as caught:
        folder.found(GPT3, data=f"{table}\n{named}")
    assert skip in caught.value.hint
    data = f"{table}\n{named}\n{skip}\nvalidation_fraction = 0.1"
    account = folder.found(GPT3, data=data).samples.accounts[""]
    assert (account.files, account.documents, account.tokens) == (1, 101, 503)
    assert account.omitted == {"row that cannot be used": (1, f"{folder.root}/in/a.csv, row 2")}


def test_a_tokenizer_that_loses_text_needs_the_owners_word(folder: Folder) -> None:
    content = json.loads(byte_level_tokenizer())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {sign: n for sign, n in vocabulary.items() if sign != "\u00e9"}
    (folder.root / "tokenizer.json").write_text(json.dumps(content))
    (folder.root / "text.txt").write_text("bread and \u9999 " * 99)
    data = f'{TEXT}\ntokenizer = "tokenizer.json"'
    with pytest.raises(ConfigError, match=r"99 of 1,188 .*'\u9999', character 11 of") as caught:
        folder.found(GPT3, data=data)
    allowed = 'lost_text = "8.4 %"'
    assert allowed in caught.value.hint
    account = folder.found(GPT3, data=f"{data}\n{allowed}").samples.accounts[""]
    assert account.lost == 99
