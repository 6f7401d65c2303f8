import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from atom import __version__
from atom.cli.app import app, main

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    usage, _, below = capsys.readouterr().out.partition(" Usage: ")[2].partition("\n")
    assert usage.startswith(f"atom {command} ")
    assert re.search(rf"Examples?\s+atom {command}\b", below)


@pytest.mark.parametrize("arguments", [[], ["-h"]])
def test_the_help_names_every_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["atom", *arguments])
    assert main() == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


def test_what_a_shell_offers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Complete the last word of a line, as bash asks."""
    monkeypatch.setenv("_ATOM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "atom join --pe")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.strip() == "--peer"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_streams_that_were_closed_before() -> None:
    command = f"{sys.executable} -m atom --version >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0


def test_help_waits_for_no_heavy_library() -> None:
    program = (
        "import sys; from atom.cli.app import main; main(['--help'])\n"
        "heavy = {'torch', 'hivemind', 'grpc', 'matplotlib', 'pydantic', 'numpy'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WHILE_IT_IS_IMPORTED = """
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "atom.cli.app": os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
"""
BEFORE_IT_IS_GUARDED = """
from atom.cli import app
app.run_guarded = lambda command: os.kill(os.getpid(), signal.SIGINT)
"""
AS_IT_BEGINS = """
from atom.cli import app
app.refuse_empty = lambda given: os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("moment", [WHILE_IT_IS_IMPORTED, BEFORE_IT_IS_GUARDED, AS_IT_BEGINS])
def test_ctrl_c_is_no_traceback(moment: str) -> None:
    program = f"import os, signal, sys\n{moment}\nfrom atom.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [["--help"], ["id", "tiny"]])
def test_a_reader_that_has_gone_is_no_fault(arguments: list[str], tmp_path: Path) -> None:
    """Case of `atom … | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "atom", *arguments]
        home = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=home)
    finally:
        os.close(writer)
    assert (done.returncode, b"rror" in done.stderr) == (0, False)


def test_a_stream_that_knows_only_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atom", "join", "--help"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"/p2p/12D3?/run/" in done.stdout
