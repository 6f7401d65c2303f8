"""`atom export`: the folder is whole or not there, and holds what the chain names."""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from atom.base.errors import MismatchError, ModelError, StorageError, TrustError
from atom.daemon.model import exporting, pinning
from atom.daemon.model.exporting import export_run
from atom.daemon.model.kept_run import KeptRun
from atom.daemon.model.sampled import sampled_folder
from atom.daemon.model.texts import TOKENIZER, content_of, read_texts
from atom.daemon.model.weight_files import WeightFiles
from atom.daemon.peer.founding import Membership
from atom.daemon.state_directory import StateDirectory
from atom.graph.ir import ParameterLayout
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.source import ModelSource
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import bytes_of, state_digest
from atom.training.storage import disk
from atom.training.storage.run_storage import write_snapshot
from tests.daemon.model.kept_runs import WORDS, Folder, folder_in
from tests.daemon.silence import Notes, Silence
from tests.daemon.tiny_run import GPT3, LLAMA, TEXT
from tests.models.chat_tokenizer import FAMILIES, tokenizer_folder

TOKENS = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(1))


SPLIT = f'{LLAMA}\nprecision = "bfloat16"'
LOUD = WORDS.replace("words", "loud")


class Kept:
    """Runs that were founded once, and have a snapshot; each test has copies of their state."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._members: dict[str, Membership] = {}

    def founded(self, model: str, root: Path) -> Membership:
        """The state directory comes to lie in `root` as `a`."""
        name = re.sub(r"\W", "", model)
        if model not in self._members:
            more = 'state = "split"' if model == SPLIT else ""
            self._members[model] = self._folder.found(model, name, more=more)
            self._folder.snapshot(self._members[model], name)
        shutil.copytree(self._folder.root / name, root / "a")
        return self._members[model]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with folder_in(tmp_path_factory.mktemp("kept")) as folder:
        yield Kept(folder)


def exported(root: Path, target: str = "out", **asked: str) -> Path:
    return export_run(root / target, root / "a", Silence(), **asked)


def loaded(path: Path) -> torch.nn.Module:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, output_loading_info=True, local_files_only=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    found: torch.nn.Module = model.eval()
    return found


@pytest.mark.parametrize("model", [GPT3, SPLIT], ids=["gpt3", "split llama"])
def test_transformers_loads_what_the_snapshot_holds(kept: Kept, tmp_path: Path, model: str) -> None:
    member = kept.founded(model, tmp_path)
    path = exported(tmp_path)
    twin = loaded(path)
    dtype = torch.bfloat16 if model == SPLIT else torch.float32
    assert {value.dtype for value in twin.parameters()} == {dtype}
    outside = member.recipe.source.outside(dtype)
    values = member.replica.export_parameters()
    state_dict = twin.state_dict()
    assert len(values) == len(list(twin.parameters()))
    for place in outside.places:
        wanted = place.from_parameter(values[place.parameter]).to(dtype)
        assert torch.equal(state_dict[place.name], wanted), place.name
    with torch.no_grad():
        generated = twin.generate(TOKENS[:, :3], max_new_tokens=4, do_sample=False)  # type: ignore[operator]
    assert generated.shape == (2, 7)
    plain = tmp_path / "plain"
    plain.touch()
    modes = {path.stat().st_mode for path in path.iterdir()}
    assert modes == {plain.stat().st_mode}, "as any file: readers of one may read all"


def test_the_tokenizer_of_bytes_comes_along(kept: Kept, tmp_path: Path) -> None:
    kept.founded(GPT3, tmp_path)
    path = exported(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    text = "Grüße, 世界\n\t€\x00 ÿ" + "".join(map(chr, range(32, 400)))
    ids = tokenizer(text)["input_ids"]
    assert ids == [token for block in ByteTokenizer().encode([text.encode()]) for token in block]
    assert tokenizer.decode(ids) == text
    assert tokenizer.model_max_length == 8


OWN = f'{TEXT}\ntokenizer = "words.json"\nlost_text = "100 %"'


def save_words(path: Path, *others: str) -> None:
    """A tokenizer.json of whole words: these, then "A peer gives"."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    listed = (*others, "A", "peer", "gives", "?", "<|endoftext|>")
    words = {word: number for number, word in enumerate(listed)}
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))


@pytest.mark.parametrize(
    "name",
    [
        "qwen", "llama 3", "mistral", "bert", "deepseek", "map of special tokens",
        "declared, not in the file", "none",
    ],
)  # fmt: skip
def test_the_settings_of_a_tokenizer_come_along(tmp_path: Path, name: str) -> None:
    family, own = FAMILIES[name], tmp_path / "model"
    tokenizer_folder(own, family.tokens, family.config, family.around, family.files)
    with folder_in(tmp_path) as folder:
        member = folder.found(GPT3, data=f'{TEXT}\ntokenizer = "model/tokenizer.json"')
        folder.snapshot(member)
        blob = bytes_of(content_of(member.samples)[TOKENIZER])
    before = transformers.AutoTokenizer.from_pretrained(own, local_files_only=True)
    shutil.rmtree(own)
    assert (tmp_path / "a" / "tokenizer").read_bytes() == blob, "joiners fetch the same"
    path = exported(tmp_path)
    after = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    assert (after.chat_template, len(after)) == (before.chat_template, len(before))
    for key in ("bos_token", "pad_token", "eos_token"):
        declared = getattr(before, key)
        assert getattr(after, key) == declared or (key == "eos_token" and declared is None)
    assert after("a")["input_ids"] == before("a")["input_ids"]
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    assert ends[0] == family.answer
    sampled = sampled_folder(path, None, str)
    if family.answer is None:
        assert not (path / "generation_config.json").exists()
        assert sampled.ends == frozenset()
        return
    generation = transformers.GenerationConfig.from_pretrained(path)
    assert generation.eos_token_id == config.eos_token_id
    assert generation.pad_token_id == before.pad_token_id
    assert sampled.ends == set(ends) == sampled_folder(tmp_path / "a", None, str).ends
    (prompt,) = sampled.read(["a"])
    assert prompt == [*family.begin, 97]


def test_another_tokenizer_never_takes_the_place_of_the_run_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, kept = tmp_path / "words.json", tmp_path / "a" / "tokenizer"

    def replaced_meanwhile(*given: object) -> object:
        text = read_texts(*given)  # type: ignore[arg-type]
        save_words(words, "others")
        return text

    with folder_in(tmp_path) as folder:
        save_words(words)
        before = words.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(pinning, "read_texts", replaced_meanwhile)
            folder.snapshot(folder.found(GPT3, data=OWN))
        assert kept.read_bytes() == before
        with pytest.raises(MismatchError, match="has changed since the run was founded"):
            folder.found(GPT3, data=OWN)
        assert kept.read_bytes() == before
    save_words(kept, "others")
    with pytest.raises(StorageError, match="is not the run's tokenizer"):
        exported(tmp_path)
    kept.write_text("{}")
    with pytest.raises(StorageError, match=r"is not a tokenizer\.json"):
        exported(tmp_path)


def test_numbers_beyond_the_format_are_named(kept: Kept, tmp_path: Path) -> None:
    kept.founded(LOUD, tmp_path)
    with pytest.raises(ModelError, match=r"table\.weight has numbers beyond float16") as caught:
        exported(tmp_path, precision="float16")
    assert "--precision float32" in caught.value.hint
    assert exported(tmp_path).is_dir()


def test_a_module_s_state_dict_has_its_own_names(kept: Kept, tmp_path: Path) -> None:
    member = kept.founded(WORDS, tmp_path)
    console = Notes()
    done = export_run(tmp_path / "out", tmp_path / "a", console)
    assert any("transformers does not load it" in note for note in console.notes)
    assert not (done / "config.json").exists()
    files = WeightFiles.open(done)
    assert set(files.shapes) == {"table.weight", "head.weight", "scale"}
    weights = member.replica.export_parameters()["table.weight"]
    assert torch.equal(files.value("table.weight"), weights)
    assert torch.equal(files.value("head.weight"), weights)


def test_somebody_else_s_code_runs_only_for_those_who_trust_them(
    kept: Kept, tmp_path: Path
) -> None:
    member = kept.founded(WORDS, tmp_path)
    (tmp_path / "a" / "identity.key").unlink()
    Identity.load_or_create(tmp_path / "a" / "identity.key")
    with pytest.raises(TrustError, match="is code of its owner") as caught:
        exported(tmp_path)
    owner = member.manifest.owner
    trust = f"{owner}:{member.run.model.module_sha256}"
    assert caught.value.hint.endswith(f"--trust {trust}")
    for other in (owner, f"{owner}:{'0' * 64}"):
        with pytest.raises(TrustError, match="is code of its owner"):
            exported(tmp_path, trust=other)
    assert exported(tmp_path, trust=trust).is_dir()
    (tmp_path / "a" / "own_code.py").write_text("raise SystemExit")
    with pytest.raises(StorageError, match="is not the run's code"):
        exported(tmp_path, "again", trust=trust)


def test_a_daemon_may_be_at_work(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon replaces its snapshots while libraries are loaded, and again later."""
    kept.founded(GPT3, tmp_path)
    daemon = StateDirectory(tmp_path / "a")
    (older,) = daemon.snapshots.iterdir()
    newer = older.with_name("round-000000000-newer.safetensors")
    source, layout, done = KeptRun.source, KeptRun.layout, list[str]()

    def loads(run: KeptRun, trust: str | None) -> ModelSource:
        older.rename(newer)
        return source(run, trust)

    def traces(run: KeptRun, source: ModelSource) -> ParameterLayout:
        newer.unlink()
        done.append("traced")
        return layout(run, source)

    monkeypatch.setattr(KeptRun, "source", loads)
    monkeypatch.setattr(KeptRun, "layout", traces)
    daemon.lock()
    daemon.chain.write_bytes(b"\0\0\1")  # an append under way
    try:
        begins = partial(done.append, "begins")
        loaded(export_run(tmp_path / "out", daemon.root, Silence(), begins=begins))
    finally:
        daemon.unlock()
    assert done == ["traced", "begins"]
    assert daemon.chain.read_bytes() == b"\0\0\1"


def test_what_cannot_be_exported_is_said(kept: Kept, tmp_path: Path) -> None:
    member = kept.founded(GPT3, tmp_path)
    (path,) = (tmp_path / "a" / "snapshots").iterdir()
    path.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="holds no snapshot yet") as caught:
        exported(tmp_path)
    assert "every 50 rounds" in caught.value.hint
    (tmp_path / "away").rename(path)
    write_snapshot(path.parent, 7, b"x" * 32, b"y" * 32, member.replica.state_arenas())
    console = Notes()
    export_run(tmp_path / "first", tmp_path / "a", console)
    assert "exporting round 0 of kept" in console.notes[1], "the newer one's branch was left"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 0x40
    path.write_bytes(bytes(raw))
    with pytest.raises(StorageError, match="is damaged: its content is not the state"):
        exported(tmp_path)
    with pytest.raises(StorageError, match="holds no run"):
        export_run(tmp_path / "out", tmp_path, Silence())
    (tmp_path / "a" / "manifest.bin").write_bytes(b"damaged")
    with pytest.raises(StorageError, match="holds no run") as caught:
        exported(tmp_path)
    assert "manifest.bin is damaged: delete it, then join the run again" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_round_that_is_kept_or_the_best_is_exported(kept: Kept, tmp_path: Path) -> None:
    member = kept.founded(GPT3, tmp_path)
    state = member.replica.state_arenas()
    better = {"master": state["master"] + 0.5}
    place = tmp_path / "a" / "checkpoints", 0, member.genesis.digest
    with pytest.raises(StorageError, match="no checkpoint with a validation; it has rounds 0"):
        exported(tmp_path, wanted="best")
    write_snapshot(*place, state_digest(better), better, "best", 2.5)
    write_snapshot(*place, b"d" * 32, {"master": state["master"]}, "round", 3.5)
    first, best = exported(tmp_path, "first", wanted="0"), exported(tmp_path, "best", wanted="best")
    weights = [loaded(path).state_dict()["transformer.wte.weight"] for path in (first, best)]
    assert torch.equal(weights[0] + 0.5, weights[1])
    with pytest.raises(StorageError, match=r"no checkpoint of round 7; it has rounds 0") as caught:
        exported(tmp_path, wanted="7")
    assert "[checkpoints]" in caught.value.hint
    for path in (tmp_path / "a" / "checkpoints").glob("best-*"):
        path.unlink()
    with pytest.raises(StorageError, match="is damaged"):
        exported(tmp_path, wanted="best")


def test_a_target_that_is_not_new(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.founded(GPT3, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for there in ("empty", "lost", "."):
        with pytest.raises(StorageError, match="is already there"):
            exported(tmp_path, there)
    with pytest.raises(StorageError, match=r"cannot write .*: File name too long"):
        exported(tmp_path, "x" * 250)
    with pytest.raises(StorageError, match="is already there"):
        export_run(Path("~/empty"), tmp_path / "a", Silence())


def test_a_folder_within_an_export_can_be_entered(tmp_path: Path) -> None:
    """Chat templates may be in one."""
    with exporting.folder_aside(tmp_path / "out") as aside:
        (aside / "inner").mkdir()
        (aside / "model.safetensors").touch(0o600)
    inner, weights = (tmp_path / "out" / n for n in ("inner", "model.safetensors"))
    assert inner.stat().st_mode & 0o777 == (tmp_path / "out").stat().st_mode & 0o777
    assert weights.stat().st_mode & 0o111 == 0


def test_nothing_half_written_is_left_but_by_who_is_killed(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.founded(GPT3, tmp_path)
    before = sorted(os.listdir(tmp_path))

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    for place, name, fault, ends in (
        (exporting, "_write_tokenizer", interrupted, pytest.raises(KeyboardInterrupt)),
        (disk, "save_file", full, pytest.raises(StorageError, match="the disk is full")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fault)
            with ends:
                exported(tmp_path)
        assert sorted(os.listdir(tmp_path)) == before
    assert exported(tmp_path).is_dir()
