"""Bytes that a peer's line carried, by day of this machine's calendar, and the monthly allowance.

The counts are kept over restarts. The allowance is [network] per_month. A peer leaves while the
remaining bytes still suffice for an orderly leave: stopping at the last byte would break the
exchange under way, and a merely paused peer would go on fetching every result. The peer does not
start again before the next month (`require_allowance`).
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from atom.base.clock import Clock
from atom.base.errors import AllowanceError
from atom.base.units import format_bytes
from atom.daemon.state_directory import write_atomically
from atom.training.storage.disk import DiskRoom

WRITTEN_EVERY_S = 10.0
"""Time between two writes of the file. A killed process forgets the bytes since the last write."""
MOST_DAYS = 62
"""Number of the latest days that are kept."""
MOST_FILE_BYTES = 1 << 16
AVERAGES_A_ROUND = 4
"""Traffic of a member in a round, up and down together, as a multiple of the size of the average,
if all lines are equally fast: see `swarm.exchange.choice`."""
ROUNDS_IN_RESERVE = 2
"""Rounds that a leave may take: the one under way, and one that commits the counted work."""


@dataclass(frozen=True)
class Traffic:
    """Traffic at one moment. Bytes are both directions together, without TLS and the DHT."""

    now: datetime
    """Local wall-clock time, without a time zone."""
    days: dict[str, int] = field(default_factory=dict)
    """Bytes by date, "2026-11-27". While the clock was wrong, bytes were added to another day."""
    round_bytes: int = 0
    """Upper bound on the bytes of one round."""
    per_month: int | None = None
    """Allowance in bytes; None: no limit."""

    @property
    def today_bytes(self) -> int:
        """Bytes of the day of `now`."""
        return self.days.get(f"{self.now:%Y-%m-%d}", 0)

    @property
    def month_bytes(self) -> int:
        """Bytes of the month of `now`."""
        return sum(count for day, count in self.days.items() if day.startswith(f"{self.now:%Y-%m}"))

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the allowance that are kept for an orderly leave."""
        return ROUNDS_IN_RESERVE * self.round_bytes

    @property
    def why_not(self) -> str:
        """Reason why the peer may not go on this month, for the owner; empty if it may."""
        if self.per_month is None or self.per_month - self.month_bytes > self.reserve_bytes:
            return ""
        allowed = f"the allowance of {format_bytes(self.per_month)} a month ([network] per_month)"
        if self.per_month <= self.reserve_bytes:
            return f"{allowed} is less than two rounds need: {format_bytes(self.reserve_bytes)}"
        return f"{allowed} is used up until {self.next_month:%d %B %Y}"

    @property
    def next_month(self) -> datetime:
        """First moment of the next month."""
        first = self.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.month, 12)
        return first.replace(year=first.year + year, month=month + 1)

    def plus(self, count: int) -> "Traffic":
        """Return the traffic with `count` more bytes at this moment."""
        day = f"{self.now:%Y-%m-%d}"
        days = self.days | {day: self.today_bytes + count}
        return replace(self, days=dict(sorted(days.items())[-MOST_DAYS:]))

    def to_json(self) -> dict[str, Any]:
        """Return the figures of `atom info`, JSON-serialisable."""
        return {
            "today_bytes": self.today_bytes,
            "month_bytes": self.month_bytes,
            "per_month_bytes": self.per_month,
        }


def most_round_bytes(carried: int, members: int, average_bytes: int) -> int:
    """Return an upper bound on the bytes that the next round takes.

    The last round's bytes may include states and text that were served to other peers. They are
    therefore capped at the bytes of a member that owns all parts.

    Args:
        carried: bytes that the line carried during the last round.
        members: number of members of the last round.
        average_bytes: encoded size of one average.
    """
    most = 2 * members * average_bytes
    return max(min(carried, most), AVERAGES_A_ROUND * average_bytes)


def used_text(today_bytes: int, month_bytes: int, per_month_bytes: int | None) -> str:
    """Return text such as "1.2 GB today, 34.0 GB this month of 500.0 GB"."""
    used = f"{format_bytes(today_bytes)} today, {format_bytes(month_bytes)} this month"
    return used if per_month_bytes is None else f"{used} of {format_bytes(per_month_bytes)}"


def kept_traffic(path: Path, now: datetime) -> Traffic:
    """Return the traffic that was written last, or none if the file is missing or damaged."""
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
        path: file with the line's bytes.
        per_month: allowance in bytes, both directions together; None: no limit.
        now: local wall-clock time.

    Raises:
        AllowanceError: the allowance is used up; the message says until when.
    """
    if why_not := replace(kept_traffic(path, now), per_month=per_month).why_not:
        raise AllowanceError(why_not, "start again later, or raise [network] per_month")


class TrafficCounter:
    """Counter of the line's bytes, written to a file regularly.

    Call `count` on one thread; `traffic` is thread-safe.
    """

    def __init__(
        self,
        path: Path,
        carried: Callable[[], int],
        clock: Clock,
        wall: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Continue from the file.

        Args:
            path: file with the line's bytes.
            carried: returns the bytes of this process so far, both directions together.
            clock: monotonic clock.
            wall: returns the local wall-clock time.
        """
        self._path, self._carried = path, carried
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._traffic, self._counted, self._due = kept_traffic(path, wall()), 0, 0.0

    @property
    def traffic(self) -> Traffic:
        """Traffic at the last `count`. Thread-safe."""
        with self._lock:
            return self._traffic

    def count(self, per_month: int | None, round_bytes: int, room: DiskRoom) -> Traffic:
        """Count the bytes until now, write them to the file if that is due, and return the traffic.

        Args:
            per_month: allowance in bytes; None: no limit.
            round_bytes: upper bound on the bytes of one round.
            room: reports a full disk.
        """
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
        """Write the counted bytes to the file atomically."""
        now = self._traffic
        kept = {"days": now.days, "round_bytes": now.round_bytes}
        room.attempt("traffic", lambda: write_atomically(self._path, json.dumps(kept).encode()))
