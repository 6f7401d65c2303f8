"""Handling of signals, so that a command that has to end leaves no unfinished file.

asyncio handles Ctrl-C in an event loop itself: it cancels the task, then raises KeyboardInterrupt.
"""

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from atom.cli.shell.failures import Terminated
from atom.daemon.console import hang_up

T = TypeVar("T")
_SHOW_CURSOR = b"\x1b[?25h"
"""Escape sequence that shows the cursor, which a progress bar hides."""


def end_at_once_on_signals(message: str = "interrupted: all files are complete") -> None:
    """Exit immediately on SIGINT, SIGTERM or SIGHUP, with exit code 128 + the signal's number.

    This suits commands that write nothing, and a daemon that is starting (a running one leaves in
    good order). An exception would be worse inside an unfinished import of torch or numpy, or in a
    callback of torch's tracing, where it aborts the process. After an exit the system closes files
    and locks, and the DHT process ends when its socket closes.

    Without effect outside the main thread.

    Args:
        message: Message that is written to stderr before the exit.
    """

    def end(number: int, frame: object) -> None:
        if select.select([], [2], [], 0.0)[1]:  # a blocked terminal must not delay the exit
            with contextlib.suppress(OSError):
                draws = os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
                os.write(2, (_SHOW_CURSOR if draws else b"") + f"\n{message}\n".encode())
        os._exit(128 + number)

    _handle((signal.SIGINT, signal.SIGTERM, *hang_up()), end)


def _handle(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, handler)


def raise_on_signals() -> None:
    """Raise an exception on Ctrl-C, SIGTERM or SIGHUP, so that the command removes partial files.

    Without effect outside the main thread.

    Raises:
        KeyboardInterrupt: Later, in the main thread, on Ctrl-C.
        Terminated: Later, in the main thread, on SIGTERM or SIGHUP.
    """

    def end(number: int, frame: object) -> None:
        raise Terminated(number)

    _handle((signal.SIGINT,), signal.default_int_handler)
    _handle((signal.SIGTERM, *hang_up()), end)


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, and return its result. SIGTERM and SIGHUP cancel it.

    Raises:
        Terminated: SIGTERM or SIGHUP cancelled the coroutine.
        KeyboardInterrupt: Ctrl-C cancelled the coroutine.
    """
    return asyncio.run(_cancellable(work))


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, *hang_up()):
        loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if received:
            raise Terminated(received[0]) from None
        raise
