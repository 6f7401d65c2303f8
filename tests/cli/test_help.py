import os
import subprocess
import sys

import pytest

from atom import __version__
from atom.cli.app import main

COMMANDS = [
    "start", "join", "bootstrap", "status", "watch", "pause", "resume", "leave", "info",
    "trace", "demo", "id", "set", "contributions", "plot",
]  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"atom {command}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_help_names_every_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["atom", *arguments])
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([asked]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_stream_that_was_closed_before(closed: str) -> None:
    command = f"{sys.executable} -m atom version {closed}"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0


def test_help_waits_for_no_heavy_library() -> None:
    program = (
        "import sys; from atom.cli.app import main; main(['--help'])\n"
        "heavy = {'torch', 'hivemind', 'grpc', 'matplotlib', 'pydantic', 'numpy'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "atom", "version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_a_stream_that_knows_only_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atom", "start", "--help"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"atom start" in done.stdout
