import json
from pathlib import Path
from typing import get_args

import pytest

from atom.base.errors import ConfigError
from atom.config.load import keys_of, load_run_file, parse_peer_text, parse_run_text
from atom.config.model_and_data import SizeName
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.models.data.files import text_corpus
from atom.models.gpt3 import SIZES
from tests.toml_text import with_key

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


def with_keys(**keys: str) -> RunFile:
    """Shakespeare's run with other keys: `section__key`."""
    text = (READY / "shakespeare.toml").read_text()
    for name, value in keys.items():
        section, _, key = name.partition("__")
        text = with_key(text, f"{section}.{key}", value)
    return parse_run_text(text)


@pytest.mark.parametrize(
    ("keys", "place", "hint"),
    [
        ({"optimizer__state": '"half"'}, r"optimizer\.state", "exact"),
        ({"optimizer__state": '"split"', "model__precision": '"float16"'}, "state", "bfloat16"),
        ({"optimizer__gradients": '"bfloat16"'}, r"optimizer\.gradients", "float32"),
        ({"update__rule": '"local-steps"'}, "inner_sequences: is missing", "optimizer step"),
        (
            {"update__rule": '"local-steps"', "update__inner_sequences": "1000000"},
            "is more than the whole global batch",
            "lower it",
        ),
        *(
            (
                {"optimizer__gradients": '"bfloat16"', "model__precision": '"bfloat16"',
                 "swarm__codec": f'"{codec}"'},
                rf'optimizer\.gradients: the codec "{codec}"',
                'codec = "bfloat16"',
            )
            for codec in ("int8", "int4", "sparse")
        ),
    ],
)  # fmt: skip
def test_numbers_and_rules_go_together(keys: dict[str, str], place: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=place) as caught:
        with_keys(**keys)
    assert hint in caught.value.hint


@pytest.mark.parametrize("key", ["optimizer__state", "optimizer__gradients"])
def test_sixteen_bits_are_for_bfloat16(key: str) -> None:
    value = "half" if key.endswith("state") else "bfloat16"
    keys = {key: f'"{value}"', "model__precision": '"bfloat16"', "swarm__codec": '"bfloat16"'}
    optimizer = with_keys(**keys).optimizer
    assert value in (optimizer.state, optimizer.gradients)


def test_pinning_fixes_what_the_tokenizer_decides(shakespeare: RunFile, small: RunFile) -> None:
    pinned = shakespeare.pinned(256, "a" * 64)
    assert (pinned.model.vocabulary_size, pinned.data.tokenizer_sha256) == (256, "a" * 64)
    assert pinned.pinned(256, "a" * 64) == pinned
    assert small.pinned(50257, "a" * 64).model.vocabulary_size == 50304
    with pytest.raises(ConfigError, match="another tokenizer"):
        pinned.pinned(256, "b" * 64)
    with pytest.raises(ConfigError, match="60000"):
        small.pinned(60_000, "a" * 64)
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
