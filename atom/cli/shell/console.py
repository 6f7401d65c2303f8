"""A daemon's words on a terminal: the address on stdout, notes and bars on stderr.

A thread writes them. Ctrl-S, or a pager that shows its first page, stops a write for as long as it
likes, and a daemon that trains, votes or leaves has no time for that.
"""

import errno
import ipaddress
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from atom.base.units import format_bytes
from atom.cli.shell.terminal import draws, stderr_console
from atom.daemon.console import BYTES

MOST_WAITING = 1000
"""Lines and steps; those beyond are left out. The daemon's journal has what happened."""
PATIENCE_S = 5.0
"""How long a command that ends waits for a terminal that takes nothing."""
FIRST_LINE_S, NEXT_LINE_S = 2.0, 30.0
"""Where nobody sees a bar: what takes less needs no word, what takes more gets one this often."""
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
                sys.stderr.fileno(), "w", encoding=sys.stderr.encoding, errors="replace",
                closefd=False,
            )  # fmt: skip
        self._steps = Steps(self._console)
        self._patience_s = patience_s
        self._waiting = queue.Queue[tuple[int, Callable[[], None]]](MOST_WAITING)
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def join_address(self, address: str) -> None:
        self.data(f"join: {address}")
        if host := private_host(address):
            self.note(
                f"{host} is reached from this machine or its network only. For peers elsewhere, "
                "name the public address: [network] announce in the peer file"
            )

    def data(self, line: str) -> None:
        """One line on stdout."""
        text = f"{line}\n".encode(errors="backslashreplace")
        self._give(_STDOUT, lambda: _write(text))

    def note(self, text: str) -> None:
        self._give(_STDERR, partial(self._print, time.strftime("%H:%M:%S"), text))

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        self._give(_STDERR, partial(self._steps.show, what, done, total, unit))

    def close(self) -> None:
        """Leaves the terminal as it was, as soon as everything is said; later calls may draw again.
        What a terminal has not taken within the patience for it is given up."""
        done, deadline = threading.Event(), time.monotonic() + self._patience_s

        def finish() -> None:
            try:
                self._steps.close()
            finally:
                done.set()

        self._give(_STDERR, finish, self._patience_s)
        if not done.wait(max(deadline - time.monotonic(), 0.0)):
            for stream in (_STDOUT, _STDERR):  # a last word would wait as well
                if not select.select([], [stream], [], 0.0)[1]:
                    _lead_nowhere(stream)

    def _give(self, stream: int, say: Callable[[], None], wait_s: float = 0.0) -> None:
        """Nothing where too much waits already, and did so for `wait_s`."""
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
                self._writer.start()
        with suppress(queue.Full):
            self._waiting.put((stream, say), block=wait_s > 0, timeout=wait_s or None)

    # ---- on the writer's thread

    def _write(self) -> None:
        """A daemon goes on when a word cannot be said: the terminal was closed, the reader has
        ended, or a log's disk is full."""
        while True:
            stream, say = self._waiting.get()
            try:
                say()
            except OSError as problem:
                if problem.errno in _NOBODY_LISTENS:
                    _lead_nowhere(stream)

    def _print(self, clock: str, text: str) -> None:
        self._console.print(f"[quiet]{clock}[/] ", end="")
        self._console.print(text, markup=False, soft_wrap=True)


class Steps:
    """Long steps: bars with their rates on a terminal, elsewhere how far they are, now and
    then. For one thread at a time."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            get_time=clock,
        )
        self._rows: dict[str, TaskID] = {}
        self._next_line_at: dict[str, float] = {}

    def show(self, what: str, done: int, total: int, unit: str) -> None:
        """As `Console.progress`."""
        if what not in self._rows:
            # One of one is nothing to count: it moves, no more.
            counted = None if total == 1 else total
            self._rows[what] = self._progress.add_task(what, total=counted, unit=unit)
            self._next_line_at[what] = self._clock() + FIRST_LINE_S
        self._progress.update(self._rows[what], completed=done)
        if draws(self._console):
            self._progress.start()
        elif total != 1 and self._clock() >= self._next_line_at[what]:
            self._next_line_at[what] = self._clock() + NEXT_LINE_S
            far = f"{done / total:.0%}" if total else "broke off"
            self._console.print(f"{what}: {far}", markup=False, soft_wrap=True)
        if done >= total:
            self._end(what)

    def close(self) -> None:
        """Leaves the terminal as it was; later steps are drawn again."""
        for what in list(self._rows):
            self._end(what)

    def _end(self, what: str) -> None:
        self._progress.remove_task(self._rows.pop(what))
        if not self._rows and draws(self._console):
            self._progress.stop()


class _Rate(ProgressColumn):
    """ "12.3 MiB/s", "1,234 rounds/s"; nothing while it is not known."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text()
        unit = task.fields["unit"]
        per_s = format_bytes(task.speed) if unit == BYTES else f"{task.speed:,.3g} {unit}"
        return Text(f"{per_s}/s")


def private_host(address: str) -> str:
    """The host in a join address that the internet does not lead to; empty: it is another one."""
    host = address.removeprefix("/").split("/")[1]
    try:
        return host if ipaddress.ip_address(host).is_private else ""
    except ValueError:  # a name
        return ""


def _write(text: bytes) -> None:
    """Past Python's own stream: a write that is held up would hold its lock."""
    sys.stdout.flush()
    os.write(_STDOUT, text)


def _lead_nowhere(stream: int) -> None:
    """From now on what goes there goes nowhere; also what Python itself holds for it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)
