"""What shells offer: commands, options, values; for real in bash, and by what it asks elsewhere."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.shell import completion
from atom.config.peer_text import all_keys
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
        ("atom set sched", {f"{key}=" for key in all_keys() if key.startswith("schedule.")}),
        ("atom set schedule.ho", {"schedule.hours=", "schedule.hours=…"}),
        ("atom set schedule.hours = ", set()),
        ("atom plan run.toml --assume rtx", {"rtx4090-24g", "rtx3060-12g"}),
        ("atom export --precision ", {"float32", "bfloat16", "float16"}),
        ("atom id w", {"words", "wares"}),
        ("atom service ", {"join", "start", "bootstrap"}),
        ("atom service join ", set()),
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


@pytest.mark.parametrize("command", ["info", "export", "watch", "plot x.svg", "join ADDRESS"])
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
    assert completion.state_directories("") == []


@pytest.mark.parametrize("line", ["atom ", "atom join --", "atom watch --", "atom plan x --"])
def test_zsh_is_told_what_each_does_on_one_line_with_its_apostrophes(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ATOM_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    with pytest.raises(SystemExit):
        main([])
    said = capsys.readouterr().out.strip()
    told = said.removeprefix("_arguments '*: :((").removesuffix("))'").splitlines()
    assert len(told) > 1
    for each in told:
        word, _, does = each.partition('":"')
        assert word.startswith('"'), each
        assert len(does) > 10, each
        assert "'" not in does, each
        assert does.endswith('"'), each


def test_the_lists_are_those_of_the_program() -> None:
    assert set(completion.DEVICES) == set(DEVICES)


def test_bash_takes_the_script(tmp_path: Path) -> None:
    atom = tmp_path / "atom"
    atom.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m atom "$@"\n')
    atom.chmod(0o755)
    script = (
        'eval "$(atom --show-completion bash)"; COMP_WORDS=(atom st); COMP_CWORD=1; '
        '_atom_completion atom; echo "${COMPREPLY[@]}"; complete -p atom'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.splitlines() == [
        "start status",
        "complete -o default -F _atom_completion atom",
    ], done.stderr


@pytest.mark.parametrize(
    ("shell", "begins"), [("zsh", "#compdef atom"), ("fish", "complete --command atom")]
)
def test_a_shell_may_be_named(
    shell: str, begins: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ATOM_COMPLETE", "")  # as it was, afterwards
    with pytest.raises(SystemExit) as ended:
        main(["--show-completion", shell])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip().startswith(begins)
