import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.config.load import keys_of, load_run_file, parse_peer_text, parse_run_text
from atom.config.model_and_data import SizeName
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.models.data.files import stdlib_corpus, text_corpus
from atom.models.data.samples import text_samples
from atom.models.gpt3 import SIZES, GPT3Config

READY = Path(__file__).parents[2] / "peers"
HERE = Path("/runs")


@pytest.fixture
def shakespeare() -> RunFile:
    return load_run_file(READY / "shakespeare.toml")


@pytest.fixture
def small() -> RunFile:
    return load_run_file(READY / "gpt3-small.toml")


def test_sizes_are_those_of_the_models_room() -> None:
    assert list(get_args(SizeName)) == list(SIZES)


@pytest.mark.parametrize("path", sorted(READY.glob("gpt3-*.toml")), ids=lambda path: path.stem)
def test_a_run_file_describes_a_model(path: Path) -> None:
    model = load_run_file(path).model
    config = GPT3Config.build(vocabulary_size=model.vocabulary_size or 0, **model.shape())
    assert config.layers == SIZES[path.stem.removeprefix("gpt3-")].layers
    assert config.vocabulary_size == 50304


def test_the_demo_has_text_on_every_machine(tmp_path: Path) -> None:
    run = load_run_file(READY / "demo.toml")
    sources = text_sources(run, PeerFile(), None)
    dataset = text_samples(
        stdlib_corpus(run.data.max_bytes),
        sources.tokenizer,
        validation_fraction=run.data.validation_fraction,
        sequence_tokens=run.model.sequence_tokens,
        seed=run.run.seed,
        cache_folder=tmp_path,
    )
    assert run.run.rounds is not None
    assert len(dataset.train) > 2 * run.run.rounds * run.batch.global_sequences
    assert len(dataset.validation) > 100


def test_a_folder_whose_name_looks_like_a_glob_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "my [run]"
    (folder / "texts").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "texts/c[1].txt"):
        (folder / name).write_text(name)
    written = '["*.txt", "texts", "texts/c[1].txt", "texts/c?1?.txt"]'
    peer = parse_peer_text(f"[data]\npaths = {written}\n", folder)
    run = load_run_file(READY / "demo.toml")
    data = run.data.model_copy(update={"source": "text", "paths": tuple(json.loads(written))})
    of_text = run.model_copy(update={"data": data})
    for sources in (text_sources(of_text, PeerFile(), folder), text_sources(of_text, peer, None)):
        corpora = [text_corpus([path]) for path in sources.paths]
        found = [[Path(each.where).name for each in corpus.read()] for corpus in corpora]
        assert found == [["a.txt", "b.txt"], *[["c[1].txt"]] * 3]


@pytest.mark.parametrize("file", [RunFile, PeerFile])
def test_every_key_says_what_it_means(file: type) -> None:
    for section, keys in keys_of(file).items():
        for key, meaning in keys.items():
            assert meaning, f"{section}.{key}"


@pytest.mark.parametrize("state", ["split", "half"])
@pytest.mark.parametrize(("precision", "hint"), [("float32", "exact"), ("float16", "bfloat16")])
def test_only_bfloat16_weights_are_split(
    tmp_path: Path, state: str, precision: str, hint: str
) -> None:
    text = (READY / "gpt3-small.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("precision", "state"))]
    split = "\n".join(lines).replace("[optimizer]", f'[optimizer]\nstate = "{state}"')
    (tmp_path / "run.toml").write_text(split.replace("[model]", '[model]\nprecision = "bfloat16"'))
    assert load_run_file(tmp_path / "run.toml").optimizer.state == state
    text = split.replace("[model]", f'[model]\nprecision = "{precision}"')
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"optimizer\.state") as caught:
        load_run_file(tmp_path / "run.toml")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("", "inner_sequences: is missing"),
        ("inner_sequences = 1000000", "is more than the whole global batch"),
    ],
)
def test_local_steps_say_how_large_a_step_is(keys: str, problem: str) -> None:
    section = f'\n[update]\nrule = "local-steps"\n{keys}\n'
    with pytest.raises(ConfigError, match=problem):
        parse_run_text((READY / "shakespeare.toml").read_text() + section)


@pytest.mark.parametrize(
    ("precision", "codec", "hint"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "int8", 'codec = "bfloat16"'),
        ("bfloat16", "int4", 'codec = "bfloat16"'),
        ("bfloat16", "sparse", 'codec = "bfloat16"'),
    ],
)
def test_gradients_in_sixteen_bits_go_with_what_can_take_them(
    tmp_path: Path, precision: str, codec: str, hint: str
) -> None:
    def write(precision: str, codec: str) -> Path:
        text = (READY / "shakespeare.toml").read_text()
        keys = ("precision", "codec", "gradients")
        lines = [line for line in text.splitlines() if not line.startswith(keys)]
        text = "\n".join(lines).replace("[optimizer]", '[optimizer]\ngradients = "bfloat16"')
        text = text.replace("[model]", f'[model]\nprecision = "{precision}"')
        text = text.replace("[swarm]", "") + f'\n[swarm]\ncodec = "{codec}"\n'
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    assert load_run_file(write("bfloat16", "bfloat16")).optimizer.gradients == "bfloat16"
    with pytest.raises(ConfigError, match=r"optimizer\.gradients") as caught:
        load_run_file(write(precision, codec))
    assert hint in caught.value.hint


def test_files_are_frozen(shakespeare: RunFile) -> None:
    with pytest.raises(ValidationError):
        shakespeare.model.layers = 5  # type: ignore[misc]
    assert hash(shakespeare) == hash(load_run_file(READY / "shakespeare.toml"))


def test_pinning_fixes_what_the_tokenizer_decides(shakespeare: RunFile, small: RunFile) -> None:
    pinned = shakespeare.pinned(256, "a" * 64)
    assert (pinned.model.vocabulary_size, pinned.data.tokenizer_sha256) == (256, "a" * 64)
    assert pinned.pinned(256, "a" * 64) == pinned
    assert small.pinned(50257, "a" * 64).model.vocabulary_size == 50304
    with pytest.raises(ConfigError, match="another tokenizer"):
        pinned.pinned(256, "b" * 64)
    with pytest.raises(ConfigError, match="60000"):
        small.pinned(60_000, "a" * 64)


def test_ones_own_run_file_names_paths_beside_it(shakespeare: RunFile, small: RunFile) -> None:
    assert text_sources(shakespeare, PeerFile(), HERE).paths == ("/runs/input.txt",)
    sources = text_sources(small, PeerFile(), HERE)
    assert (sources.paths, sources.tokenizer) == (("/runs/text",), "/runs/tokenizer.json")


def test_a_strangers_paths_are_never_opened(shakespeare: RunFile, small: RunFile) -> None:
    for run in (shakespeare, small):
        with pytest.raises(ConfigError) as caught:
            text_sources(run, PeerFile(), None)
        assert "founder's machine" in caught.value.message
        assert "--peer" in caught.value.hint
    peer = parse_peer_text('[data]\npaths = ["mine.txt"]\n', Path("/box"))
    assert text_sources(shakespeare, peer, None).paths == ("/box/mine.txt",)
    with pytest.raises(ConfigError, match=r"data\.tokenizer"):
        text_sources(small, peer, None)


def test_the_peer_files_copy_goes_before_the_run_files(small: RunFile) -> None:
    peer = parse_peer_text('[data]\npaths = ["m"]\ntokenizer = "t.json"\n', Path("/box"))
    for folder in (None, HERE):
        sources = text_sources(small, peer, folder)
        assert (sources.paths, sources.tokenizer) == (("/box/m",), "/box/t.json")


def test_a_table_is_a_folder_here_or_a_name_of_the_hub(tmp_path: Path) -> None:
    text = (READY / "demo.toml").read_text()
    text = text.replace('"python-stdlib"', '"datasets"\npath = "owner/name"')
    run = parse_run_text(text)
    assert text_sources(run, PeerFile(), tmp_path).table == "owner/name"
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert text_sources(run, PeerFile(), tmp_path).table == str(tmp_path / "owner" / "name")
    for mine, place in (("x/y", "x/y"), ("./x/y", "/box/x/y"), ("x", "/box/x"), ("/x", "/x")):
        peer = parse_peer_text(f'[data]\npath = "{mine}"\n', Path("/box"))
        assert text_sources(run, peer, None).table == place
    with pytest.raises(ConfigError, match=r"data\.path: .*founder's machine") as caught:
        text_sources(run, PeerFile(), None)
    assert "path = … under [data]" in caught.value.hint


def test_a_stranger_cannot_make_python_stdlib_read_files() -> None:
    run = load_run_file(READY / "demo.toml")
    peer = parse_peer_text('[data]\npaths = ["m"]\n', Path("/box"))
    assert text_sources(run, peer, None).paths == ()
