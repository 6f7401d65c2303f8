"""How long nobody else has used this machine, as far as that can be seen.

Used means one of three: a key was pressed in a terminal (their devices tell when they were last
read, as `w` shows it); a desktop session told logind that it is not idle; or programs that are not
ours took more than a third of a core: neither this daemon nor another one of its user. None of them
sees everything, so any one will do. The clock on the wall may be set, so nothing is held against
it.
"""

import contextlib
import math
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from atom.daemon.owner.gpu import Neighbours

OTHERS_CORES = 0.3
"""Of processor time: less than that is a machine looking after itself."""
DEVICES = Path("/dev")
_SINCE = "IdleSinceHintMonotonic"
_LOGINCTL = ("loginctl", "show-session", "--property=IdleHint", f"--property={_SINCE}")
_LOGINCTL_S = 2.0


class MachineUse:
    """Looks at what happened since its last look. From one thread."""

    def __init__(self, neighbours: Neighbours = lambda: ()) -> None:
        """`neighbours`: ids of processes that are none of others', as they are now."""
        self._neighbours = neighbours
        self._at_s = time.monotonic()
        self._others_s, self._neighbours_s = _others_seconds(), _seconds_of(neighbours())
        self._load_at_s = self._key_at_s = self._at_s
        self._read_at_s = _terminals_read_at_s()

    def idle_s(self) -> float:
        """At most: since this was made."""
        return max(0.0, min(self._load_idle_s(), self._key_idle_s(), desktop_idle_s()))

    def _key_idle_s(self) -> float:
        before, now_s = self._read_at_s, time.monotonic()
        self._read_at_s = _terminals_read_at_s()
        if any(before.get(path) != at_s for path, at_s in self._read_at_s.items()):
            self._key_at_s = now_s
        return now_s - self._key_at_s

    def _load_idle_s(self) -> float:
        now_s, others_s = time.monotonic(), _others_seconds()
        spent_s, before_s = _seconds_of(self._neighbours()), self._neighbours_s
        neighbours_s = sum(spent - before_s.get(pid, spent) for pid, spent in spent_s.items())
        if others_s - self._others_s - neighbours_s > OTHERS_CORES * (now_s - self._at_s):
            self._load_at_s = now_s
        self._at_s, self._others_s, self._neighbours_s = now_s, others_s, spent_s
        return now_s - self._load_at_s


def desktop_idle_s() -> float:
    """What logind says of all its sessions; infinite where there is none to ask."""
    try:
        said = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S)
    except (OSError, subprocess.TimeoutExpired):
        return math.inf
    return idle_hint_s(said.stdout, time.monotonic()) if said.returncode == 0 else math.inf


def idle_hint_s(said: str, now_s: float) -> float:
    """Of logind's properties, one "Key=value" per line; `now_s`: `time.monotonic`. Pure."""
    told = dict(line.partition("=")[::2] for line in said.splitlines())
    if told.get("IdleHint") == "no":
        return 0.0
    since_us = told.get(_SINCE, "0")
    if told.get("IdleHint") != "yes" or not since_us.isdigit() or int(since_us) == 0:
        return math.inf
    return now_s - int(since_us) / 1e6


def _terminals_read_at_s() -> Mapping[Path, float]:
    """By their device, as its file system's clock showed it."""
    found: dict[Path, float] = {}
    for path in (*DEVICES.glob("pts/[0-9]*"), *DEVICES.glob("tty[0-9]*")):
        with contextlib.suppress(OSError):
            found[path] = path.stat().st_atime
    return found


def _others_seconds() -> float:
    """Of processor time, of all programs but ours, since the machine started."""
    times = psutil.cpu_times()
    resting = times.idle + times.iowait + times.steal
    # Time in guests is counted in `user` and `nice` as well.
    busy = sum(times) - resting - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    ours = os.times()
    own = ours.user + ours.system + ours.children_user + ours.children_system
    own += sum(_spent_s(psutil.Process().children(recursive=True)).values())
    return float(busy - own)


def _seconds_of(pids: Iterable[int]) -> dict[int, float]:
    """Of processor time, of other processes than ours and of their children, by process."""
    found: dict[int, float] = {}
    for pid in set(pids) - {os.getpid()}:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= _spent_s([process, *process.children(recursive=True)])
    return found


def _spent_s(processes: Iterable[psutil.Process]) -> dict[int, float]:
    """Without those that have ended."""
    found: dict[int, float] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found
