"""A daemon's words on a terminal: the address on stdout, notes and bars on stderr."""

import sys
import threading
import time

from atom.cli.progress_bars import Bars, Lines, Step
from atom.cli.terminal import draws, stderr_console
from atom.daemon.console import BYTES


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
        with self._lock:
            clock = time.strftime("%H:%M:%S")
            self._console.print(f"[quiet]{clock}[/] ", end="")
            self._console.print(text, markup=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        with self._lock:
            self._steps.show(Step(what, done, total, unit))

    def close(self) -> None:
        """Leaves the terminal as it was; later calls may draw again."""
        with self._lock:
            self._steps.close()
