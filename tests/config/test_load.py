from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.base.errors import ConfigError
from atom.config.load import (
    MAX_FILE_BYTES,
    OPTION_KEYS,
    load_peer_file,
    load_run_file,
    normalised_run_text,
    parse_peer_text,
    parse_run_text,
    run_from_text,
)
from atom.config.peer_file import PeerFile
from tests.toml_text import with_key

READY = Path(__file__).parents[2] / "peers"
EXAMPLE = (READY / "shakespeare.toml").read_text()


def complaint(old: str, new: str) -> ConfigError:
    assert old in EXAMPLE
    with pytest.raises(ConfigError) as caught:
        parse_run_text(EXAMPLE.replace(old, new), "r.toml")
    return caught.value


def peer_complaint(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_peer_text(text, Path("/box"), "p.toml")
    return caught.value


@pytest.mark.parametrize("path", sorted(READY.glob("*.toml")), ids=lambda path: path.name)
def test_every_ready_file_loads(path: Path) -> None:
    if "[run]" in path.read_text():
        run = load_run_file(path)
        assert run_from_text(normalised_run_text(run)) == run
    else:
        assert load_peer_file(path) != PeerFile()


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("layers = 4", "", "model.layers"),
        ("layers = 4", 'size = "small"', "model.heads"),
        ("heads = 4", "heads = 3", "model.model_dim"),
        ("rounds = 2000", "", "optimizer.decay"),
        ('"cosine"', '"linear"\ndecay_rounds = 1900', "optimizer.decay_rounds"),
        ("[optimizer]", "[[optimizer]]", "optimizer"),
    ],
)
def test_a_wrong_key_of_a_run_file_is_named_with_a_hint(old: str, new: str, key: str) -> None:
    error = complaint(old, new)
    assert error.message.startswith(f"r.toml: {key}: ")
    assert error.hint
    assert "pydantic" not in error.message


def test_an_empty_peer_file_is_valid_and_so_is_none() -> None:
    assert parse_peer_text("", Path("/box")) == PeerFile() == load_peer_file(None)
    assert PeerFile().network.listen == "0.0.0.0:0"


def test_an_unknown_key_is_refused_with_the_one_that_is_near() -> None:
    for old, new, near in (
        ("heads = 4", "haeds = 4", "heads"),
        ("[batch]", "[bacth]", "batch"),
        ("seed =", "epsilon = 1\nseed =", "[optimizer]"),
        ("[run]", "[device]\n[run]", "--peer"),
    ):
        error = complaint(old, new)
        assert ": unknown " in error.message
        assert near in error.hint


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="run: is missing\nrun file: model: is missing"):
        parse_run_text("")


def test_malformed_toml_names_the_line() -> None:
    assert "at line 21" in complaint("[batch]", "[batch").message
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse_run_text("a = " + "[" * 30_000)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[device]\nmemory_bytes = "1 B"', "device.memory_bytes"),
        ('[run]\nname = "x"', "run"),
        ("[networq]", "networq"),
    ],
)
def test_a_wrong_key_of_a_peer_file_is_named_with_a_hint(text: str, key: str) -> None:
    error = peer_complaint(text)
    assert error.message.startswith(f"p.toml: {key}: ")
    assert error.hint


def test_a_full_peer_file_has_units_and_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.toml").write_text(
        '[device]\nuse = ["cuda:0", "cuda:1"]\nmemory = "8 GiB"\ncpu_threads = 3\n'
        '[host]\nmemory = "auto"\n'
        '[network]\nlisten = "[::1]:80"\nannounce = ["a.example:1", "[::1]", "192.0.2.1"]\n'
        'upload = "400 Mbit/s"\ndata_port = 5\n'
        '[state]\ndirectory = "s"\n[data]\npaths = ["*.txt", "/abs"]\ntokenizer = "~/t.json"\n'
    )
    monkeypatch.setenv("HOME", "/home/me")
    peer = load_peer_file(tmp_path / "p.toml")
    assert (peer.device.memory_bytes, peer.host.memory_bytes) == (8 * 2**30, None)
    assert peer.network.upload_bits_per_s == 4e8
    assert peer.state.directory == str(tmp_path / "s")
    assert peer.data.paths == (str(tmp_path / "*.txt"), "/abs")
    assert peer.data.tokenizer == "/home/me/t.json"


OPTIONS = {
    "--listen": ("127.0.0.1:9", 'network.listen = "127.0.0.1:9"'),
    "--upload": ("10 Mbit/s", 'network.upload = "10 Mbit/s"'),
    "--download": ("2.5 Gbit/s", 'network.download = "2.5 Gbit/s"'),
    "--gpu-memory": ("8 GiB", 'device.memory = "8 GiB"'),
    "--cpu-threads": (3, "device.cpu_threads = 3"),
    "--map-ports": (True, "network.map_ports = true"),
    "--hours": (["mon-fri 18:00-08:00", "sun 00:00-24:00"],
                'schedule.hours = ["mon-fri 18:00-08:00", "sun 00:00-24:00"]'),
}  # fmt: skip
"""Value of each option of the command line, and the same in a peer file."""
FULL = (
    '[device]\nuse = ["cuda:0", "cuda:1"]\nmemory = "1 GiB"\ncpu_threads = 1\n[network]\n'
    'upload = "1 bit/s"\nper_month = "500 GB"\n[schedule]\nidle_for = "10 min"\n[state]\n'
    'directory = "s"\n[data.sources.a]\npaths = ["*.txt"]\n[metrics]\nport = 0\n'
)


@pytest.mark.parametrize("option", OPTION_KEYS)
def test_an_option_replaces_its_key_and_no_other(option: str, tmp_path: Path) -> None:
    value, line = OPTIONS[option]
    (tmp_path / "p.toml").write_text(FULL)
    key, _, written = line.partition(" = ")
    wanted = parse_peer_text(with_key(FULL, key, written), tmp_path)
    assert parse_peer_text(line, tmp_path) == load_peer_file(None, {option: value})
    assert load_peer_file(tmp_path / "p.toml", {option: value}) == wanted


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "there.toml").write_text(EXAMPLE)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    (tmp_path / "long.toml").write_text("é" * MAX_FILE_BYTES)
    for name, what, hint in (
        ("gone.toml", "No such file", "check"),
        ("", "Is a directory", "check"),
        ("latin.toml", "not UTF-8 text (byte 8)", "UTF-8"),
        ("long.toml", "longer than 64 KiB", ""),
        ("there.toml/below", "Not a directory", ""),
        ("nul\0", "null byte", ""),
    ):
        with pytest.raises(ConfigError) as caught:
            load_run_file(tmp_path / name)
        assert what in caught.value.message
        assert str(tmp_path) in caught.value.message
        assert hint in caught.value.hint
    with pytest.raises(ConfigError, match="No such file"):
        load_peer_file(tmp_path / "gone.toml")


def test_editors_marks_and_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert load_run_file(path) == parse_run_text(EXAMPLE)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "null", "3", '"run"', "{}", "[" * 60_000, " " * 70_000,
        '{"run": {"name": "\\u001b[31m"}}', '{"\\u001b[2J": 1}', '{"run": "\ud800"}',
        '{"run": {"seed": ' + "9" * 5000 + "}}",
    ],
    ids=range(13),
)  # fmt: skip
def test_a_strangers_nonsense_is_a_plain_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_from_text(text)
    printed = caught.value.message + caught.value.hint
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert len(printed) < 2000


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["run", "model", "name", "optimizer", "betas", "x", "size"]), inner
    ),
    max_leaves=12,
))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_tree_gets_past_as_anything_but_a_config_error(tree: object) -> None:
    import json

    with pytest.raises(ConfigError):
        run_from_text(json.dumps(tree))


def test_normalised_text_forgets_how_it_was_written() -> None:
    other = EXAMPLE.replace("1e-3", "0.001").replace("clip_norm = 1.0", "clip_norm = 1")
    other = "# comment\n" + other.replace("layers = 4", 'layers    = 4\nfamily = "gpt3"')
    other = other.replace('family = "gpt3" ', "# ", 1)
    first, second = parse_run_text(EXAMPLE), parse_run_text(other)
    assert first == second
    assert normalised_run_text(first) == normalised_run_text(second)
