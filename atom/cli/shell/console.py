"""Terminal output of a daemon: the join address on stdout, notes and progress bars on stderr.

A separate thread writes. Ctrl-S, or a pager that waits on its first page, can block a write for
any time, and a daemon that trains, votes or leaves must not wait for the terminal.
"""

import errno
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from atom.cli.shell.terminal import draws, lead_nowhere, stderr_console
from atom.swarm.dial_rules import AddressClass, class_of

MOST_WAITING = 1000
"""Capacity of the queue of outputs. More are dropped; the daemon's journal has all events."""
PATIENCE_S = 5.0
"""Longest time that `close` waits for a terminal that accepts no output."""
FIRST_LINE_S, NEXT_LINE_S = 2.0, 30.0
"""Seconds until a step's first progress line, and between later ones, where no bar is drawn."""
_NOBODY_LISTENS = (errno.EPIPE, errno.EIO)
_STDOUT, _STDERR = 1, 2


class TerminalConsole:
    """The daemon's `Console` on a terminal. Thread-safe; only `close` waits for the terminal."""

    def __init__(self, patience_s: float = PATIENCE_S, asks: bool = True) -> None:
        """Open the console; the writer's thread starts with the first output.

        Args:
            patience_s: Longest time that `close` waits, in seconds.
            asks: False: ask no questions, as without a terminal.
        """
        self._asks = asks
        self._console = stderr_console()
        with suppress(OSError):  # a stream in memory has no file number
            # A blocked write holds the lock of its stream. So the console gets a separate stream:
            # Python and `logging` flush `sys.stderr` when they exit.
            self._console.file = open(  # noqa: SIM115 - open until the process ends
                sys.stderr.fileno(), "w", encoding=sys.stderr.encoding, errors="replace",
                closefd=False,
            )  # fmt: skip
        self._steps = Steps(self._console)
        self._patience_s = patience_s
        self._waiting = queue.Queue[tuple[int, Callable[[], None]]](MOST_WAITING)
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def join_address(self, address: str) -> None:
        """Print the join address on stdout, and warn if other networks cannot reach it."""
        self.data(f"join: {address}")
        host = address.split("/")[2]
        if class_of(host) is not AddressClass.PUBLIC:
            self.note(
                f"{host} can be reached only from this machine or its network. For other peers, "
                "name the public address: [network] announce in the peer file"
            )

    def data(self, line: str) -> None:
        """Write one line to stdout."""
        text = f"{line}\n".encode(errors="backslashreplace")
        self._give(_STDOUT, lambda: _write(text))

    def note(self, text: str) -> None:
        """Print a line with the time of day on stderr."""
        self._give(_STDERR, partial(self._print, time.strftime("%H:%M:%S"), text))

    def progress(self, what: str, done: int, total: int) -> None:
        """Show the progress of one step on stderr: see `Console.progress`."""
        self._give(_STDERR, partial(self._steps.show, what, done, total))

    def ask(self, question: str, default: bool) -> bool | None:
        """Ask on the terminal, if there is one: see `Console.ask`."""
        if not (self._asks and sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        self.close()
        return typer.confirm(question, default=default, err=True)

    def close(self) -> None:
        """Write everything that waits, then remove the bars. Later calls may draw again.

        Output that the terminal has not accepted within `patience_s` is dropped.
        """
        done, deadline = threading.Event(), time.monotonic() + self._patience_s

        def finish() -> None:
            try:
                self._steps.close()
            finally:
                done.set()

        self._give(_STDERR, finish, self._patience_s)
        if not done.wait(max(deadline - time.monotonic(), 0.0)):
            for stream in (_STDOUT, _STDERR):  # Python's flush at exit would block too
                if not select.select([], [stream], [], 0.0)[1]:
                    lead_nowhere(stream)

    def _give(self, stream: int, say: Callable[[], None], wait_s: float = 0.0) -> None:
        """Queue an output; drop it if the queue is full, and stays full for `wait_s`."""
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
                self._writer.start()
        with suppress(queue.Full):
            self._waiting.put((stream, say), block=wait_s > 0, timeout=wait_s or None)

    # ---- on the writer's thread

    def _write(self) -> None:
        # The daemon goes on if an output fails: the terminal was closed, the reader of the pipe has
        # ended, or the disk of the log is full.
        while True:
            stream, say = self._waiting.get()
            try:
                say()
            except OSError as problem:
                if problem.errno in _NOBODY_LISTENS:
                    lead_nowhere(stream)

    def _print(self, clock: str, text: str) -> None:
        self._console.print(f"[quiet]{clock}[/] ", end="")
        self._console.print(text, markup=False, soft_wrap=True)


class Steps:
    """Progress of long steps: bars on a terminal, elsewhere a line now and then.

    One thread at a time may call the methods.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            get_time=clock,
        )
        self._rows: dict[str, TaskID] = {}
        self._next_line_at: dict[str, float] = {}

    def show(self, what: str, done: int, total: int) -> None:
        """Show the progress of one step; same arguments as `Console.progress`."""
        if what not in self._rows:
            # A step with a total of 1 has no fraction to show: its bar only moves.
            counted = None if total == 1 else total
            self._rows[what] = self._progress.add_task(what, total=counted)
            self._next_line_at[what] = self._clock() + FIRST_LINE_S
        self._progress.update(self._rows[what], completed=done)
        if draws(self._console):
            self._progress.start()
        elif total != 1 and self._clock() >= self._next_line_at[what]:
            self._next_line_at[what] = self._clock() + NEXT_LINE_S
            far = f"{done / total:.0%}" if total else "interrupted"
            self._console.print(f"{what}: {far}", markup=False, soft_wrap=True)
        if done >= total:
            self._end(what)

    def close(self) -> None:
        """Remove all bars from the terminal; later steps may draw again."""
        for what in list(self._rows):
            self._end(what)

    def _end(self, what: str) -> None:
        self._progress.remove_task(self._rows.pop(what))
        if not self._rows and draws(self._console):
            self._progress.stop()


def _write(text: bytes) -> None:
    """Write to stdout without Python's stream object: a blocked write would hold its lock."""
    sys.stdout.flush()
    os.write(_STDOUT, text)
