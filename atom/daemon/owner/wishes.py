"""Checks of the owner's conditions for work, every few seconds. `why_not` decides; it is pure."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from atom.base.units import format_seconds
from atom.config.hours import next_opening
from atom.config.peer_file import PeerFile, Schedule
from atom.daemon.owner.machine import on_battery, sessions_idle_s


@dataclass(frozen=True)
class Observations:
    """Observations of this machine. By the defaults, which mean unknown, the peer may work."""

    on_battery: bool = False
    idle_s: float = math.inf
    """Seconds since a person used the machine."""


def why_not(now: datetime, wishes: Schedule, seen: Observations) -> str:
    """Return why the peer may not work, and until when if that is known; empty if it may.

    Args:
        now: Local wall-clock time, without a time zone.
        wishes: [schedule] of the peer file.
        seen: Observations of this machine.
    """
    opens = next_opening(wishes.windows, now)
    if opens is not None:
        far = opens - now >= timedelta(days=1) or opens.date() != now.date()
        return f"outside its hours, until {opens:{'%a %H:%M' if far else '%H:%M'}}"
    if wishes.pause_on_battery and seen.on_battery:
        return "on battery"
    if wishes.idle_for_s is not None and seen.idle_s < wishes.idle_for_s:
        wanted = format_seconds(wishes.idle_for_s)
        return f"the machine is in use, or idle for less than {wanted}"
    return ""


LOOK_S = 2.0
"""Seconds between two checks."""


def wall_clock() -> datetime:
    """Return the local wall-clock time, without a time zone, in the zone that is set now."""
    time.tzset()
    return datetime.now()  # naive on purpose: see `atom.config.hours.next_opening`


class OwnersWishes:
    """Conditions of [schedule] under which the machine may work; a thread checks them.

    Thread-safe.
    """

    def __init__(
        self,
        peer: PeerFile,
        on_reason: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
        wall: Callable[[], datetime] = wall_clock,
    ) -> None:
        """Check nothing yet.

        Args:
            peer: Peer file with the conditions.
            on_reason: Called with the reason to pause after each check; empty if there is none.
            on_failure: Called with the exception of a check that failed in the thread.
            wall: Returns the local wall-clock time.
        """
        self._peer, self._wall = peer, wall
        self._on_reason, self._on_failure = on_reason, on_failure
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wishes", daemon=True)

    def keep_looking(self) -> None:
        """Check once, then start the thread."""
        self.look()
        self._thread.start()

    def change(self, peer: PeerFile) -> None:
        """Use the conditions of this peer file from now on, unless closed."""
        with self._lock:
            if self._closing.is_set():
                return
            self._peer = peer
        self.look()

    def look(self) -> None:
        """Check the conditions now, and report the result."""
        with self._lock:
            now, wishes = self._wall(), self._peer.schedule
            self._on_reason(why_not(now, wishes, self.seen(wishes)))

    def seen(self, wishes: Schedule) -> Observations:
        """Return the observations that these conditions need."""
        return Observations(
            on_battery=wishes.pause_on_battery and on_battery(),
            idle_s=math.inf if wishes.idle_for_s is None else sessions_idle_s(),
        )

    def close(self) -> None:
        """Stop the checks, and wait for the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_S):
                self.look()
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._on_failure(failure)
