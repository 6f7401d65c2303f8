"""Time as an argument: whatever decides is given a clock, tests give it one they turn by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary start; goes on while the machine sleeps or a process is frozen."""

    def now(self) -> float: ...


class BootClock:
    """The real one. CLOCK_BOOTTIME counts suspended time too, so a standstill shows as a jump."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
