"""Injected time: code that makes decisions takes a clock; tests pass one that they set by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Clock that also advances while the machine sleeps or the process is stopped."""

    def now(self) -> float:
        """Return the seconds since an arbitrary start."""


class BootClock:
    """Clock of this machine since its boot.

    CLOCK_BOOTTIME also counts the time that the machine was suspended, so a suspension appears as a
    jump.
    """

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
