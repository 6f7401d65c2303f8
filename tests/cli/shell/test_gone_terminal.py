"""A daemon whose stderr goes away, as when its terminal is closed."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest

TALKS_ON = """
import os, sys
from atom.cli.shell.console import TerminalConsole
console = TerminalConsole()
console.progress("fetching", 1, 4)
os.write(1, b"ready\\n")  # a bar has sys.stdout for itself
sys.stdin.readline()
console.note("one")
console.progress("fetching", 2, 4)
console.note("two")
console.progress("fetching", 4, 4)
console.close()
os.write(1, b"survived\\n")
"""
INTERRUPTED = """
import os, signal, sys
from atom.cli.shell.signals import end_at_once_on_signals
end_at_once_on_signals()
os.write(1, b"ready\\n")
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("program", "code", "last", "opened"),
    [
        (TALKS_ON, 0, "survived\n", pty.openpty),
        (TALKS_ON, 0, "survived\n", os.pipe),
        (INTERRUPTED, 130, "", pty.openpty),
    ],
    ids=["talks on a terminal", "talks on a pipe", "interrupted"],
)
def test_nobody_reads_stderr_any_more(
    program: str, code: int, last: str, opened: Callable[[], tuple[int, int]]
) -> None:
    ours, theirs = opened()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        text=True,
    ) as command:
        os.close(theirs)
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        os.close(ours)
        said, _ = command.communicate("go\n", timeout=60)
        assert (said, command.returncode) == (last, code)
