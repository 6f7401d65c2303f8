"""Checks of the owner's conditions for work, every few seconds. `why_not` decides; it is pure.

The kernel says whether this machine runs on battery, and logind since when it is idle.
"""

import math
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from atom.base.units import format_seconds
from atom.config.hours import next_opening
from atom.config.peer_file import PeerFile, Schedule

SUPPLIES = Path("/sys/class/power_supply")
_STORES = ("Battery", "UPS")
_SINCE = "IdleSinceHintMonotonic"
_LOGINCTL = ("loginctl", "show-session", "--property=IdleHint", f"--property={_SINCE}")
_LOGINCTL_S = 2.0
LOOK_S = 2.0
"""Seconds between two checks."""


def why_not(now: datetime, wishes: Schedule, is_on_battery: bool, idle_s: float) -> str:
    """Return why the peer may not work, and until when if that is known; empty if it may.

    Args:
        now: Local wall-clock time, without a time zone.
        wishes: [schedule] of the peer file.
        is_on_battery: True if this machine runs on battery.
        idle_s: Seconds since a person used this machine; infinite if unknown.
    """
    opens = next_opening(wishes.windows, now)
    if opens is not None:
        far = opens - now >= timedelta(days=1) or opens.date() != now.date()
        return f"outside its hours, until {opens:{'%a %H:%M' if far else '%H:%M'}}"
    if wishes.pause_on_battery and is_on_battery:
        return "on battery"
    if wishes.idle_for_s is not None and idle_s < wishes.idle_for_s:
        return f"the machine is in use, or idle for less than {format_seconds(wishes.idle_for_s)}"
    return ""


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
            is_on_battery = wishes.pause_on_battery and on_battery()
            idle_s = math.inf if wishes.idle_for_s is None else sessions_idle_s()
            self._on_reason(why_not(now, wishes, is_on_battery, idle_s))

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


# ---- what this machine says


def sessions_idle_s() -> float:
    """Return the seconds since any session was in use, by logind; infinite without logind."""
    try:
        said = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S)
    except (OSError, subprocess.TimeoutExpired):
        return math.inf
    return idle_hint_s(said.stdout, time.monotonic()) if said.returncode == 0 else math.inf


def idle_hint_s(said: str, now_s: float) -> float:
    """Return the idle seconds in logind's properties. Pure.

    Args:
        said: output of loginctl, one "Key=value" per line.
        now_s: seconds of `time.monotonic`.
    """
    fields = dict(line.partition("=")[::2] for line in said.splitlines())
    if fields.get("IdleHint") == "no":
        return 0.0
    since_us = fields.get(_SINCE, "0")
    if fields.get("IdleHint") != "yes" or not since_us.isdigit() or int(since_us) == 0:
        return math.inf
    return now_s - int(since_us) / 1e6


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Return True if no supply feeds the machine and one of its batteries discharges.

    Return False if this is unknown. The kernel is asked directly, because psutil mistakes the
    battery of a wireless mouse for the machine's.
    """
    try:
        own = [each for each in supplies.iterdir() if _said(each / "scope") != "Device"]
    except OSError:  # none exists, or one is being unplugged
        return False
    if any(_said(each / "online") == "1" for each in own if _said(each / "type") not in _STORES):
        return False
    emptied = (each for each in own if _said(each / "status") == "Discharging")
    return any(_said(each / "type") in _STORES for each in emptied)


def _said(file: Path) -> str:
    """Return the content of the file; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
