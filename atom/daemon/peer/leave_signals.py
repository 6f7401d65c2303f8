"""SIGTERM, SIGINT and SIGHUP ask a daemon to leave; who hears of a second one may insist."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def hang_up() -> tuple[signal.Signals, ...]:
    """SIGHUP, or nothing where it is ignored: `nohup` has its way."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return () if ignored else (signal.SIGHUP,)


class LeaveSignals:
    """Notes what arrives while it is `heard`; `wake` is called then, in the signal's handler."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._asked: list[int] = []

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Elsewhere than on the main thread, where Python hands out no signals: nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT, *hang_up())
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def take(self) -> Iterator[str]:
        """Names of those that arrived, each once."""
        while self._asked:
            yield signal.Signals(self._asked.pop(0)).name

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)  # no locks in here: the main thread may hold them
        self._wake()
