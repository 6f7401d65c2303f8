"""A daemon whose stderr goes away, as when its terminal is closed; a display whose terminal is."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
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

ENDS_WHAT_IT_SHOWS = """
import asyncio, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
from atom.cli.shell.failures import run_guarded
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import stdout_console

async def work():
    try:
        print("ready", flush=True)
        await asyncio.sleep(60.0)
    finally:
        stdout_console().print("what was seen last")

async def beside():
    async with asyncio.TaskGroup() as group:
        group.create_task(work())

async def of_its_own():  # no signal tells it: its shell gave it away
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print("more", flush=True)

which = {"beside": beside, "of its own": of_its_own}[sys.argv[1]]
sys.exit(run_guarded(lambda: run_to_the_end(which())))
"""


@pytest.mark.parametrize("work", ["beside", "of its own"])
def test_a_display_whose_terminal_is_closed_says_so_and_is_no_fault(work: str) -> None:
    ours, theirs = pty.openpty()
    told = work != "of its own"
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_WHAT_IT_SHOWS, work],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=told,
        preexec_fn=_owns_the_terminal if told else None,
    ) as command:
        os.close(theirs)
        assert os.read(ours, 5) == b"ready"
        os.close(ours)
        assert command.wait(60) == 129


def _owns_the_terminal() -> None:
    """In the child: so it is told when the terminal is closed."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty], ids=["pipe", "terminal"])
@pytest.mark.parametrize(
    ("program", "code", "last"),
    [(TALKS_ON, 0, "survived\n"), (INTERRUPTED, 130, "")],
    ids=["talks on", "interrupted"],
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
