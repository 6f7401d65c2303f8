"""A daemon's words on a terminal: the address on stdout, notes and bars on stderr."""

import errno
import os
import select
import sys
import threading
import time
from contextlib import suppress
from functools import partial

from atom.cli.shell.folding import folded
from atom.cli.shell.progress_bars import Bars, Lines, Step
from atom.cli.shell.terminal import draws, stderr_console
from atom.cli.shell.writer_thread import Act, WriterThread
from atom.daemon.console import BYTES

MOST_WAITING = 1000
"""Lines and steps; of those beyond, lines are counted, and steps told when there is room."""
PATIENCE_S = 5.0
"""How long a command that ends waits for a terminal that takes nothing."""

_NOBODY_LISTENS = (errno.EPIPE, errno.EIO)
_STDOUT, _STDERR = 1, 2


class TerminalConsole:
    """Implements the daemon's `Console`; its methods may be called from any thread. None but
    `close` ever waits for the terminal."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._console = stderr_console()
        with suppress(OSError):  # a stream in memory
            # A write that is held up holds the lock of its stream: not of the one that Python and
            # `logging` flush at their end.
            self._console.file = open(  # noqa: SIM115 - as long as the process
                sys.stderr.fileno(),
                "w",
                encoding=sys.stderr.encoding,
                errors="replace",
                closefd=False,
            )
        on_terminal = draws(self._console)
        self._steps = Bars(self._console) if on_terminal else Lines(self._console)
        self._writer = WriterThread(MOST_WAITING)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._left_out = 0
        self._late: dict[str, Step] = {}
        """The latest of each step that there was no room for."""

    def join_address(self, address: str) -> None:
        self.data(f"join: {address}")

    def data(self, line: str) -> None:
        """One line on stdout."""
        self._say(partial(self._speak, _STDOUT, partial(_write_data, line)))

    def note(self, text: str) -> None:
        self._say(partial(self._speak, _STDERR, partial(self._print, _clock(), text)))

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        step = Step(what, done, total, unit)
        speak = partial(self._speak, _STDERR, partial(self._steps.show, step))
        with self._lock:
            self._late.pop(what, None)
            if not self._writer.give(speak):
                self._late[what] = step

    def close(self) -> None:
        """Leaves the terminal as it was, as soon as everything is said; later calls may draw again.
        What a terminal has not taken within the patience for it is given up."""
        if not self._writer.finish(partial(self._speak, _STDERR, self._end), self._patience_s):
            _cut_off()

    def _say(self, speak: Act) -> None:
        with self._lock:
            if not self._writer.give(speak):
                self._left_out += 1

    # ---- on the writer's thread

    def _speak(self, stream: int, say: Act) -> None:
        """Whoever trains goes on when a word cannot be said: the terminal was closed, the reader
        has ended, or a log's disk is full."""
        try:
            say()
            self._catch_up()
        except OSError as problem:
            if problem.errno in _NOBODY_LISTENS:
                _lead_nowhere(stream)

    def _catch_up(self) -> None:
        with self._lock:
            if not self._writer.has_caught_up:
                return
            left_out, self._left_out = self._left_out, 0
            late, self._late = self._late, {}
        for step in late.values():
            self._steps.show(step)
        if left_out:
            self._print(_clock(), f"{left_out} lines were left out while nothing could be written")

    def _print(self, clock: str, text: str) -> None:
        room = self._console.width - len(clock) - 1
        lines = folded(text, room) if self._console.is_terminal else [text]
        for number, line in enumerate(lines):
            lead = " " * len(clock) if number else f"[quiet]{clock}[/]"
            self._console.print(f"{lead} ", end="")
            self._console.print(line, markup=False, soft_wrap=True)

    def _end(self) -> None:
        self._catch_up()
        self._steps.close()


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _write_data(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _lead_nowhere(stream: int) -> None:
    """From now on what goes there goes nowhere; also what Python itself holds for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def _cut_off() -> None:
    """Whoever says a last word would wait as well, and so would Python, which flushes at its end;
    it aborts if the lock of a stream is never free."""
    for name in ("stdout", "stderr"):
        with suppress(OSError):  # a stream in memory
            number = getattr(sys, name).fileno()
            if select.select([], [number], [], 0.0)[1]:
                continue
            _lead_nowhere(number)
            other = open(number, "w", closefd=False)  # noqa: SIM115 - as long as the process
            for place in (name, f"__{name}__"):
                setattr(sys, place, other)
