"""Signals for commands that run an event loop: everything opened is closed, then the code says why.

Ctrl-C is asyncio's own business: it cancels the task and raises KeyboardInterrupt afterwards.
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from atom.cli.failures import Terminated

T = TypeVar("T")


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

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await work
    except asyncio.CancelledError:
        if received:
            raise Terminated from None
        raise
