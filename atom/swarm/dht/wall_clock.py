"""Whether the clock on the wall was set back: then records expire at a time that is far off."""

import time
from collections.abc import Callable

from atom.base.clock import Clock

STEP_SECONDS = 1.0
"""Corrections below this are nothing to a lease, which lasts for eight."""


class WallClock:
    """Held against a clock that nobody sets."""

    def __init__(self, steady: Clock, wall: Callable[[], float] = time.time) -> None:
        self._steady, self._wall = steady, wall
        self._ahead_s = self._look()

    def was_set_back(self) -> bool:
        """Since this was asked last."""
        before_s, self._ahead_s = self._ahead_s, self._look()
        return before_s - self._ahead_s > STEP_SECONDS

    def _look(self) -> float:
        return self._wall() - self._steady.now()
