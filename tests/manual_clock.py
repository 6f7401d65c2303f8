"""Time that a test turns by hand."""

import threading


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
