"""Time as an argument: whatever decides is given a clock, tests give it one they turn by hand."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary start; goes on while the machine sleeps or a process is frozen."""

    def now(self) -> float: ...


class BootClock:
    """The real one. CLOCK_BOOTTIME counts suspended time too, so a thaw shows as a jump."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that only moves when told. Thread-safe."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Moves time forward. Raises: ValueError for a negative step."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        with self._lock:
            self._now += seconds
