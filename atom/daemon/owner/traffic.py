"""Bytes that a peer's line carried, by day of this machine's calendar, kept over restarts; and a
month's allowance ([network] per_month), which may be used up.

A peer leaves in order while there is room for what its leaving may take. Stopping at the last byte
would break the exchange that it is in, and a peer that only stood still would fetch every result.
Until the next month it does not start again (`require_allowance`).
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from atom.base.clock import BootClock, Clock
from atom.base.errors import AllowanceError
from atom.base.units import format_bytes
from atom.daemon.state_directory import write_atomically
from atom.training.storage.disk import DiskRoom

WRITTEN_EVERY_S = 10.0
"""A process that is killed forgets what its line carried since."""
MOST_DAYS = 62
MOST_FILE_BYTES = 1 << 16
AVERAGES_A_ROUND = 4
"""Averages that a member's line carries in a round, up and down together, where lines are alike:
`swarm.exchange.choice`."""
ROUNDS_IN_RESERVE = 2
"""The one under way, and one that sees the counted work committed."""


@dataclass(frozen=True)
class Traffic:
    """The traffic at one moment. Bytes are both ways together, without TLS and the DHT."""

    now: datetime
    """Time on the wall, without a time zone."""
    days: dict[str, int] = field(default_factory=dict)
    """Bytes by date, "2026-11-27". A clock that was wrong counted for another day, and took nothing
    from the right one."""
    round_bytes: int = 0
    """Bytes that a round may take, at most."""
    per_month: int | None = None
    """The allowance; None: there is none."""

    @property
    def today_bytes(self) -> int:
        return self.days.get(f"{self.now:%Y-%m-%d}", 0)

    @property
    def month_bytes(self) -> int:
        return sum(count for day, count in self.days.items() if day.startswith(f"{self.now:%Y-%m}"))

    @property
    def reserve_bytes(self) -> int:
        """Left unused, for leaving in order."""
        return ROUNDS_IN_RESERVE * self.round_bytes

    @property
    def why_not(self) -> str:
        """Why the peer trains no further with others, and until when; empty: it may."""
        if self.per_month is None or self.per_month - self.month_bytes > self.reserve_bytes:
            return ""
        allowed = f"its {format_bytes(self.per_month)} a month ([network] per_month)"
        if self.per_month <= self.reserve_bytes:
            return f"{allowed} are less than two rounds take, {format_bytes(self.reserve_bytes)}"
        return f"{allowed} are used up until {self.next_month:%d %B %Y}"

    @property
    def next_month(self) -> datetime:
        """The first moment of the next month."""
        first = self.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.month, 12)
        return first.replace(year=first.year + year, month=month + 1)

    def plus(self, count: int) -> "Traffic":
        """Return the traffic with `count` more bytes at this moment."""
        day = f"{self.now:%Y-%m-%d}"
        days = self.days | {day: self.today_bytes + count}
        return replace(self, days=dict(sorted(days.items())[-MOST_DAYS:]))

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return {
            "today_bytes": self.today_bytes,
            "month_bytes": self.month_bytes,
            "per_month_bytes": self.per_month,
        }


def most_round_bytes(carried: int, members: int, average_bytes: int) -> int:
    """Return the bytes that a round may take.

    The line may have served states and text besides: an exchange takes at most the bytes of a
    member that owns all parts.

    Args:
        carried: bytes of the last round.
        members: members of the last round.
        average_bytes: bytes of one average.
    """
    most = 2 * members * average_bytes
    return max(min(carried, most), AVERAGES_A_ROUND * average_bytes)


def used_text(today_bytes: int, month_bytes: int, per_month_bytes: int | None) -> str:
    """ "1.2 GiB today, 34.0 GiB this month of 465.7 GiB"."""
    used = f"{format_bytes(today_bytes)} today, {format_bytes(month_bytes)} this month"
    return used if per_month_bytes is None else f"{used} of {format_bytes(per_month_bytes)}"


def kept_traffic(path: Path, now: datetime) -> Traffic:
    """Return the traffic that was written last; a damaged file is no reason not to start."""
    try:
        with path.open("rb") as file:
            said = json.loads(file.read(MOST_FILE_BYTES))
        days = {str(day): int(count) for day, count in said["days"].items() if 0 <= count < 2**62}
        return Traffic(now, days, int(said["round_bytes"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Traffic(now)


def require_allowance(path: Path, per_month: int | None, now: datetime) -> None:
    """Refuse a start while the line may carry nothing more this month.

    Args:
        path: the file that the line's bytes are written to.
        per_month: the allowance in bytes, both ways; None: there is none.
        now: the time on the wall.

    Raises:
        AllowanceError: the allowance is used up; it names the day from which it is not.
    """
    if why_not := replace(kept_traffic(path, now), per_month=per_month).why_not:
        raise AllowanceError(why_not, "start again then, or with a larger [network] per_month")


class TrafficCounter:
    """Counts, and writes down now and then. `count` is for one thread, `traffic` for any."""

    def __init__(
        self,
        path: Path,
        carried: Callable[[], int],
        clock: Clock | None = None,
        wall: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`carried`: bytes by this process so far, both ways."""
        self._path, self._carried = path, carried
        self._clock, self._wall = clock or BootClock(), wall
        self._lock = threading.Lock()
        self._traffic, self._counted, self._due = kept_traffic(path, wall()), 0, 0.0

    @property
    def traffic(self) -> Traffic:
        """The traffic at the last `count`."""
        with self._lock:
            return self._traffic

    def count(self, per_month: int | None, round_bytes: int, room: DiskRoom) -> Traffic:
        """Count the bytes until now, and write them down if that is due."""
        carried, counted = self._carried(), self._counted
        with self._lock:
            as_now = replace(
                self._traffic, now=self._wall(), per_month=per_month, round_bytes=round_bytes
            )
            self._traffic = as_now.plus(carried - counted)
        self._counted = carried
        if self._clock.now() >= self._due:
            self._due = self._clock.now() + WRITTEN_EVERY_S
            self.write(room)
        return self._traffic

    def write(self, room: DiskRoom) -> None:
        """Write the counted bytes to the disk, whole or not at all."""
        now = self._traffic
        kept = {"days": now.days, "round_bytes": now.round_bytes}
        room.attempt("traffic", lambda: write_atomically(self._path, json.dumps(kept).encode()))
