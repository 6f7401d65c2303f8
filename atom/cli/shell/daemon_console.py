"""A daemon's words on a terminal: the address on stdout, notes and bars on stderr."""

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from atom.cli.shell.progress_bars import Bars, Lines, Step
from atom.cli.shell.terminal import draws, stderr_console
from atom.daemon.console import BYTES

_NOBODY_LISTENS = (errno.EPIPE, errno.EIO)


class TerminalConsole:
    """Implements the daemon's `Console`; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._console = stderr_console()
        self._lock = threading.Lock()
        on_terminal = draws(self._console)
        self._steps = Bars(self._console) if on_terminal else Lines(self._console)

    def join_address(self, address: str) -> None:
        sys.stdout.write(f"join: {address}\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        with self._speaking():
            clock = time.strftime("%H:%M:%S")
            self._console.print(f"[quiet]{clock}[/] ", end="")
            self._console.print(text, markup=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        with self._speaking():
            self._steps.show(Step(what, done, total, unit))

    def close(self) -> None:
        """Leaves the terminal as it was; later calls may draw again."""
        with self._speaking():
            self._steps.close()

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Whoever trains goes on when a word cannot be said: the terminal was closed, the reader
        has ended, or a log's disk is full."""
        with self._lock:
            try:
                yield
            except OSError as problem:
                if problem.errno in _NOBODY_LISTENS:
                    _say_no_more()


def _say_no_more() -> None:
    """From now on what goes to stderr goes nowhere; also what Python itself holds for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
