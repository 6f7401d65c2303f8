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


def why_not(now: datetime, wishes: Schedule, seen: Observations) -> str:
    """Why it may not, and until when if anybody knows; empty: it may. `now`: what the clock on the
    wall shows, without a time zone."""
    opens = next_opening(wishes.windows, now)
    if opens is not None:
        far = opens - now >= timedelta(days=1) or opens.date() != now.date()
        return f"outside its hours, until {opens:{'%a %H:%M' if far else '%H:%M'}}"
    if wishes.pause_on_battery and seen.on_battery:
        return "on battery"
    if wishes.pause_for_gpu_programs and seen.gpu_idle_s < GPU_QUIET_S:
        return f"another program uses the GPU: {seen.gpu_user or 'unknown'}"
    if wishes.idle_for_s is not None and seen.idle_s < wishes.idle_for_s:
        wanted = format_seconds(wishes.idle_for_s)
        return f"the machine is in use, or not yet idle for {wanted}"
    return ""
