"""What shells offer: commands, options, values, by what bash asks."""

from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.shell import options
from atom.graph.profile.devices import DEVICES


@pytest.fixture
def kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("words", "wares", "_bootstrap"):
        (tmp_path / "atom" / name).mkdir(parents=True)
    return tmp_path / "atom"


def offered(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """For the last word of a line, as bash asks."""
    words = line.split(" ")
    monkeypatch.setenv("_ATOM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("atom co", {"compile", "contributions"}),
        ("atom join --pe", {"--peer"}),
        ("atom --ver", {"--version"}),
        ("atom plan run.toml --assume rtx", {"rtx4090-24g", "rtx3060-12g"}),
        ("atom id w", {"words", "wares"}),
        ("atom join --peer ", set()),
    ],
)
def test_what_is_offered(
    line: str,
    wanted: set[str],
    kept_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(offered(line, monkeypatch, capsys)) == wanted


@pytest.mark.parametrize("command", ["info", "export", "watch", "join ADDRESS"])
def test_states_are_offered_where_they_are_kept(
    command: str,
    kept_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = {str(kept_runs / "words"), str(kept_runs / "wares")}
    assert set(offered(f"atom {command} --state ", monkeypatch, capsys)) == wanted


def test_nothing_is_kept_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert options.state_directories("") == []


def test_the_lists_are_those_of_the_program() -> None:
    assert set(options.DEVICES) == set(DEVICES)
