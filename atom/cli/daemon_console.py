"""A daemon's words on a terminal: the address on stdout, notes and bars on stderr."""

import sys
import threading
import time

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from atom.cli.terminal import stderr_console

_STEPS = 10
"""Lines per long step where stderr is no terminal."""


class TerminalConsole:
    """Implements the daemon's `Console`; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._console = stderr_console()
        self._lock = threading.Lock()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def join_address(self, address: str) -> None:
        sys.stdout.write(f"join: {address}\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        with self._lock:
            clock = time.strftime("%H:%M:%S")
            self._console.print(f"[quiet]{clock}[/] ", end="")
            self._console.print(text, markup=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        with self._lock:
            if self._console.is_terminal:
                self._draw(what, done, total)
            else:
                self._spell(what, done, total)

    def close(self) -> None:
        """Leaves the terminal as it was; later calls may draw again."""
        with self._lock:
            self._stop_bars()

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)
        if done >= total:
            self._bars.remove_task(self._tasks.pop(what))
            if not self._tasks:
                self._stop_bars()

    def _stop_bars(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def _spell(self, what: str, done: int, total: int) -> None:
        step = _STEPS if done >= total else _STEPS * done // max(1, total)
        if self._said.get(what) == step:
            return
        self._said[what] = step
        self._console.print(f"{what}: {100 * step // _STEPS} %", markup=False)
        if done >= total:
            del self._said[what]
