"""May this box work now? What its owner wished, held against what was seen of it. Pure."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from atom.base.units import format_seconds
from atom.config.hours import next_opening
from atom.config.peer_file import Schedule

GPU_QUIET_S = 30.0
"""Nobody else has used the GPU for so long: then it is free. (A game pauses, too.)"""


@dataclass(frozen=True)
class Observations:
    """What was seen of the box. Whatever cannot be seen here keeps nobody from working."""

    on_battery: bool = False
    idle_s: float = math.inf
    """Since somebody, or a program that is not ours, used the box."""
    gpu_idle_s: float = math.inf
    """Since another program used the GPU."""
    gpu_user: str = ""
    """Its name."""


@dataclass(frozen=True)
class Refusal:
    """Why not, and until when, if anybody knows."""

    reason: str
    until: datetime | None = None
    """By the clock on the wall."""

    def text(self, now: datetime) -> str:
        """ "outside its hours, until 18:00"."""
        if self.until is None:
            return self.reason
        far = self.until - now >= timedelta(days=1) or self.until.date() != now.date()
        return f"{self.reason}, until {self.until:{'%a %H:%M' if far else '%H:%M'}}"


def may_work(now: datetime, wishes: Schedule, seen: Observations) -> Refusal | None:
    """None: yes. `now`: what the clock on the wall shows, without a time zone."""
    opens = next_opening(wishes.windows, now)
    if opens is not None:
        return Refusal("outside its hours", opens)
    if wishes.pause_on_battery and seen.on_battery:
        return Refusal("on battery")
    if wishes.pause_for_gpu_programs and seen.gpu_idle_s < GPU_QUIET_S:
        return Refusal(f"another program uses the GPU: {seen.gpu_user or 'unknown'}")
    if wishes.idle_for_s is not None and seen.idle_s < wishes.idle_for_s:
        wanted = format_seconds(wishes.idle_for_s)
        return Refusal(f"the machine is in use, or not yet idle for {wanted}")
    return None
