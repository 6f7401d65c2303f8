"""State of a terminal after a signal ended a command."""

import asyncio
import os
import pty
import signal
import subprocess
import sys

import pytest

from atom.cli.shell.failures import Terminated
from atom.cli.shell.signals import run_to_the_end
from atom.daemon.console import ending_signals

INTERRUPTED_WHILE_A_BAR_IS_DRAWN = """
import os, signal
from rich.console import Console
from atom.cli.shell.console import Steps
from atom.cli.shell.signals import end_at_once_on_signals
end_at_once_on_signals("interrupted")
Steps(Console(stderr=True)).show("fetching", 1, 2)
os.kill(os.getpid(), signal.SIGINT)
"""


def test_the_cursor_is_shown_again() -> None:
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", INTERRUPTED_WHILE_A_BAR_IS_DRAWN]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(program, stderr=theirs, env=environment) as command:
        assert command.wait(60) == 130
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert "fetching" in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "shown after it was hidden"
    assert seen.endswith("interrupted\r\n")


def test_an_end_that_is_under_way_is_not_disturbed() -> None:
    told: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [
        signal.signal(number, lambda number, frame: told.append(number)) for number in numbers
    ]
    try:
        with ending_signals(signal.SIG_IGN):
            for number in numbers:
                signal.raise_signal(number)
        assert told == []
        for number in numbers:
            signal.raise_signal(number)
        assert told == list(numbers), "the earlier handlers are back"
    finally:
        for number, answer in zip(numbers, before, strict=True):
            signal.signal(number, answer)


def test_sigterm_cancels_the_work_of_a_loop() -> None:
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(Terminated):
        run_to_the_end(work())
