"""Interface of a daemon's output to its terminal, and the signals that end a daemon."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Console(Protocol):
    """Output of a daemon for its owner. The command line decides how it looks."""

    def join_address(self, address: str) -> None:
        """Show the address with which other peers join this run."""

    def note(self, text: str) -> None:
        """Show one line."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far a long step is.

        Args:
            what: the step, such as "fetching the state".
            done: part of `total` that is done; equal to `total` at the end of the step.
            total: the whole step, in any unit; 0 if the step was broken off.
        """

    def ask(self, question: str, default: bool) -> bool | None:
        """Return the owner's answer to a question; None if nobody is there to answer.

        Args:
            question: the question, with a question mark.
            default: answer of an owner who only presses Enter.
        """


def hang_up() -> tuple[signal.Signals, ...]:
    """Return SIGHUP; empty if it is ignored, because `nohup` must keep the daemon running."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return () if ignored else (signal.SIGHUP,)


@contextmanager
def ending_signals(handler: Any) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handler` in this context. Main thread only."""
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up())
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
