"""A daemon whose terminal takes nothing for a while (Ctrl-S, a pager), or never again."""

import io
import os
import re
import subprocess
import sys
import threading

import pytest

from atom.cli.shell.console import MOST_WAITING, TerminalConsole

WAIT_S = 20.0

TALKS_INTO_FULL_PIPES = """
import logging, os, sys
from atom.cli.shell.console import MOST_WAITING, TerminalConsole
logging.basicConfig()  # it flushes the stream that it found
console = TerminalConsole(patience_s=0.1)
for number in range(MOST_WAITING + 100):
    console.note("x" * 1000)
console.join_address("/ip4/10.0.0.5/tcp/1/p2p/Qm/run/tiny")
console.progress("fetching", 1, 4)
console.close()
os.write(3, b"ended\\n")
print("a last word", file=sys.stderr)
"""
INTERRUPTED = """
import os, signal
from atom.cli.shell.signals import end_at_once_on_signals
end_at_once_on_signals()
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 1000)
except BlockingIOError:
    os.set_blocking(2, True)
os.write(3, b"ended\\n")
os.kill(os.getpid(), signal.SIGINT)
"""


class Stopped(io.StringIO):
    """A stream whose writes wait until it flows."""

    def __init__(self) -> None:
        super().__init__()
        self.flows, self.reached = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.flows.wait(WAIT_S)
        return super().write(text)


def filled(monkeypatch: pytest.MonkeyPatch) -> tuple[TerminalConsole, Stopped]:
    """One line is being written, and no further one has room."""
    stopped = Stopped()
    monkeypatch.setattr(sys, "stderr", stopped)  # no fixture: pytest sets its own before the test
    console = TerminalConsole(WAIT_S)
    console.note("first")
    assert stopped.reached.wait(WAIT_S)
    for number in range(MOST_WAITING):
        console.note(f"line {number}")
    return console, stopped


def test_lines_beyond_those_that_can_wait_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    console, stopped = filled(monkeypatch)
    for _ in range(3):
        console.note("short by")
    stopped.flows.set()
    console.close()
    lines = re.sub(r"(?m)^(?:[\d:]{8})? ", "", stopped.getvalue()).splitlines()
    assert lines[:2] == ["first", "line 0"]
    assert lines[-1] == f"line {MOST_WAITING - 1}"
    console.note("later")
    console.close()
    assert stopped.getvalue().endswith(" later\n")


@pytest.mark.parametrize(
    ("program", "code"), [(TALKS_INTO_FULL_PIPES, 0), (INTERRUPTED, 130)], ids=["talks", "ends"]
)
def test_a_terminal_that_never_takes_anything_again(program: str, code: int) -> None:
    """Python, which flushes its streams at its end, neither waits for the terminal nor aborts."""
    theirs, ours = os.pipe()
    reader, writer = os.pipe()
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", f"import os; os.dup2({writer}, 3)\n{program}"],
        stdout=ours,
        stderr=ours,
        env=buffered,
        pass_fds=[writer],
    ) as command:
        for end in (ours, writer):
            os.close(end)
        try:
            assert command.wait(WAIT_S) == code
        finally:
            command.kill()
            said = os.read(reader, 100)
            os.close(theirs)
            os.close(reader)
    assert said == b"ended\n"
