"""What a daemon says to the person at its terminal; the command line decides how it looks. And what
a terminal that is closed says to it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

BYTES = "bytes"


class Console(Protocol):
    def join_address(self, address: str) -> None:
        """The one string that others paste to join this run."""

    def note(self, text: str) -> None:
        """One line worth reading."""

    def progress(self, what: str, done: int, total: int, unit: str = BYTES) -> None:
        """How far a long step is, in `unit`: BYTES, or a word for several; `done == total` ends
        it, and a `total` of 0 says that it broke off."""


def hang_up() -> tuple[signal.Signals, ...]:
    """SIGHUP, or nothing where it is ignored: `nohup` has its way."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return () if ignored else (signal.SIGHUP,)


@contextmanager
def ending_signals(handler: Any) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP go to `handler` meanwhile. In the main thread."""
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up())
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
