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
    ("arguments", "stream", "code"),
    [
        (["id", "No Name"], "stderr", 4),
        (["nonsense"], "stderr", 2),
        (["--version"], "stderr", 0),
        (["--help"], "stderr", 0),
        (["--version"], "stdout", 6),
        (["--help"], "stdout", 6),
    ],
)
def test_a_full_disk_of_the_log_takes_messages_only(
    arguments: list[str], stream: str, code: int
) -> None:
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        ended = subprocess.run([sys.executable, "-m", "atom", *arguments], **streams)  # type: ignore[call-overload]
    assert ended.returncode == code
    assert b"Traceback" not in (ended.stderr or b"")
    assert stream == "stderr" or ended.stderr.startswith(b"error: the disk is full")


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
