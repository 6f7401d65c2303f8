"""Weekly hours in local wall-clock time, written as "mon-fri 18:00-08:00"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = 7 * _DAY_MINUTES
_WINDOW = re.compile(r"\s*(\S+)\s+(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)\s*")


@dataclass(frozen=True)
class Window:
    """Weekly time window: a fixed number of minutes from each of several starts."""

    starts_min: frozenset[int]
    """Starts in minutes since Monday 00:00."""
    length_min: int
    """Length of the window after each start, in minutes."""

    def holds(self, now: datetime) -> bool:
        """Return True if `now` (local time, without a time zone) lies within the window."""
        minute = _minute_of_week(now)
        return any((minute - start) % _WEEK_MINUTES < self.length_min for start in self.starts_min)


def parse_window(text: str) -> Window:
    """Parse a weekly window such as "sat,sun 00:00-24:00".

    Raises:
        ValueError: the message says what is wrong with the text.
    """
    match = _WINDOW.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a weekly time; write mon-fri 18:00-08:00")
    start, end = _minutes(text, *match.group(2, 3)), _minutes(text, *match.group(4, 5))
    if start == _DAY_MINUTES:
        raise ValueError(f"{text!r} begins at 24:00; write 00:00 of the next day")
    if start == end:
        raise ValueError(f"{text!r} ends when it begins; a whole day is 00:00-24:00")
    starts = frozenset(_DAY_MINUTES * day + start for day in _days(text, match[1]))
    length = end - start if end > start else end - start + _DAY_MINUTES  # past midnight
    return Window(starts, length)


def next_opening(windows: Sequence[Window], now: datetime) -> datetime | None:
    """Return the local time at which the next window begins; None if work is allowed now.

    Work is allowed now if a window holds, or if there are no windows at all.

    Args:
        windows: the hours in which work is allowed; empty means always.
        now: local wall-clock time without a time zone, so that windows follow daylight-saving
            changes.
    """
    if not windows or any(window.holds(now) for window in windows):
        return None
    minute, starts = _minute_of_week(now), {s for window in windows for s in window.starts_min}
    wait_min = min((start - minute) % _WEEK_MINUTES for start in starts)
    return now.replace(second=0, microsecond=0) + timedelta(minutes=wait_min)


def _minute_of_week(now: datetime) -> int:
    return _DAY_MINUTES * now.weekday() + 60 * now.hour + now.minute


def _minutes(text: str, hours: str, minutes: str) -> int:
    total = 60 * int(hours) + int(minutes)
    if int(minutes) > 59 or total > _DAY_MINUTES:
        raise ValueError(f"{text!r}: there is no {hours}:{minutes}")
    return total


def _days(text: str, names: str) -> frozenset[int]:
    """Parse "mon-fri", "sat,sun", "fri-mon" or "daily" into days of the week; Monday is 0."""
    found = set[int]()
    for part in names.replace("daily", "mon-sun").split(","):
        first, _, last = part.partition("-")
        if not {first, last or first} <= set(DAYS):
            raise ValueError(f"{text!r}: {part} is not one of the days {', '.join(DAYS)}, daily")
        start = DAYS.index(first)
        length = (DAYS.index(last or first) - start) % 7
        found.update((start + offset) % 7 for offset in range(length + 1))
    return frozenset(found)
