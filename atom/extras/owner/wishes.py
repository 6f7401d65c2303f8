"""Holds the owner's wishes against what is seen of the machine, every few seconds. `why_not`
decides, and is pure."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from atom.base.units import format_seconds
from atom.config.hours import next_opening
from atom.config.peer_file import PeerFile, Schedule
from atom.daemon.extensions import Wishes
from atom.extras.owner.machine import on_battery, sessions_idle_s


@dataclass(frozen=True)
class Observations:
    """What was seen of the box. Whatever cannot be seen here keeps nobody from working."""

    on_battery: bool = False
    idle_s: float = math.inf
    """Since somebody sat at the box."""


def why_not(now: datetime, wishes: Schedule, seen: Observations) -> str:
    """Why it may not, and until when if anybody knows; empty: it may. `now`: what the clock on the
    wall shows, without a time zone."""
    opens = next_opening(wishes.windows, now)
    if opens is not None:
        far = opens - now >= timedelta(days=1) or opens.date() != now.date()
        return f"outside its hours, until {opens:{'%a %H:%M' if far else '%H:%M'}}"
    if wishes.pause_on_battery and seen.on_battery:
        return "on battery"
    if wishes.idle_for_s is not None and seen.idle_s < wishes.idle_for_s:
        wanted = format_seconds(wishes.idle_for_s)
        return f"the machine is in use, or not yet idle for {wanted}"
    return ""


LOOK_S = 2.0


def wall_clock() -> datetime:
    """What the clock on the wall shows, without a time zone; of the zone as it is set now."""
    time.tzset()
    return datetime.now()  # naive on purpose: see `atom.config.hours.next_opening`


class OwnersWishes(Wishes):
    """[schedule]. A thread looks; `told` hears why the peer is to stand still; empty: it is not."""

    def __init__(
        self,
        peer: PeerFile,
        told: Callable[[str], None],
        failed: Callable[[BaseException], None],
        wall: Callable[[], datetime] = wall_clock,
    ) -> None:
        self._peer, self._wall = peer, wall
        self._told, self._failed = told, failed
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wishes", daemon=True)

    def keep_looking(self) -> None:
        """Looks for the first time before it returns."""
        self.look()
        self._thread.start()

    def change(self, peer: PeerFile) -> None:
        """What `peer` wishes holds from now on. From any thread."""
        with self._lock:
            if self._closing.is_set():
                return
            self._peer = peer
        self.look()

    def look(self) -> None:
        with self._lock:
            now, wishes = self._wall(), self._peer.schedule
            self._told(why_not(now, wishes, self.seen(wishes)))

    def seen(self, wishes: Schedule) -> Observations:
        """Return what the wishes ask about, and look at nothing else."""
        return Observations(
            on_battery=wishes.pause_on_battery and on_battery(),
            idle_s=math.inf if wishes.idle_for_s is None else sessions_idle_s(),
        )

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_S):
                self.look()
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._failed(failure)
