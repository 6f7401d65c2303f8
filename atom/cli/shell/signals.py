"""Signals, and what a command that is told to end leaves behind it: nothing half done.

In an event loop Ctrl-C is asyncio's own business: it cancels the task and raises KeyboardInterrupt
afterwards.
"""

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from atom.base.errors import StorageError
from atom.base.files import why_not_written
from atom.cli.shell.failures import Terminated
from atom.daemon.console import hang_up

T = TypeVar("T")
_SHOW_CURSOR = b"\x1b[?25h"
"""A bar that was being drawn had hidden it."""


def end_at_once_on_signals(said: str = "interrupted: what is on disk is whole") -> None:
    """Until the daemon lives (it then leaves in good order), there is nothing to finish; nor has a
    command that writes nothing.

    An exception raised inside a half-done import of torch or numpy, or where torch calls back while
    it traces a model (that aborts the process), would be worse than an end: the system closes our
    files and locks, and the DHT process goes when its socket closes.
    """

    def end(number: int, frame: object) -> None:
        if select.select([], [2], [], 0.0)[1]:  # a terminal that takes nothing keeps nobody here
            with contextlib.suppress(OSError):
                os.write(2, (_SHOW_CURSOR if _draws() else b"") + f"\n{said}\n".encode())
        os._exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGINT, signal.SIGTERM, *hang_up()):
        signal.signal(number, end)


def _draws() -> bool:
    return os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"


def raise_on_signals() -> None:
    """From now on Ctrl-C, SIGTERM and SIGHUP end the command by an exception, so that what it is
    about to write is taken away. Raises (in the main thread, when they come): KeyboardInterrupt,
    Terminated.
    """

    def end(number: int, frame: object) -> None:
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, *hang_up()):
        signal.signal(number, end)


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; SIGTERM and SIGHUP cancel it.

    Raises: Terminated after such a signal; KeyboardInterrupt after Ctrl-C.
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


def refuse_folders(file: Path, example: str) -> None:
    """A place for a file, looked at before anybody waits. Raises: StorageError."""
    if file.is_dir():
        raise StorageError(f"{file} is a folder", f"name a file, such as {example}")
    if not file.absolute().parent.is_dir():
        raise StorageError(f"there is no folder {file.parent}", "choose another place")


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """The file is whole, or not there: `write` gets a place aside, which then takes its.

    Raises: StorageError; what `raise_on_signals` does, from here on.
    """
    raise_on_signals()
    aside = file.with_name(f".partial-{file.name}")
    try:
        write(aside)
        aside.replace(file)
    except BaseException as problem:  # also when interrupted: nothing of ours stays
        with contextlib.suppress(OSError):
            aside.unlink()
        if not isinstance(problem, OSError):
            raise
        raise StorageError(
            f"cannot write {file}: {why_not_written(problem)}", "choose another place"
        ) from problem
