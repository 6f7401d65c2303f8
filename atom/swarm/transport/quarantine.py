"""Who is put aside for what it did, and for how long. Pure: the time is given.

Kept in memory only, bounded, and never for long: what looks like a lie may be a broken disk, and
what looks like a flood a restart. Only who signs two different things about one decision is aside
for as long as this process lives: no accident does that.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from atom.base.reasons import Reason

LONGEST_HOLD_S = 600.0
FORGOTTEN_S = 600.0
"""After the last hold has ended: then the next offence is the first again."""
MOST_REMEMBERED = 4096

LONG_AFTER_S = 1e12
FOR_GOOD_S = 2 * LONG_AFTER_S
"""Longer than any clock runs, and a number that JSON can say."""

_ACCIDENT_S, _LIE_S = 5.0, 30.0
FIRST_HOLD_S: Mapping[Reason, float] = {
    Reason.TIMEOUT: _ACCIDENT_S,
    Reason.TOO_SLOW: _ACCIDENT_S,
    Reason.BAD_HANDSHAKE: _ACCIDENT_S,
    Reason.STATE_MISMATCH: _ACCIDENT_S,
    Reason.TOO_LARGE: _LIE_S,
    Reason.MALFORMED: _LIE_S,
    Reason.BAD_SIGNATURE: _LIE_S,
    Reason.BAD_CERTIFICATE: _LIE_S,
    Reason.BAD_WEIGHT: _LIE_S,
    Reason.HASH_MISMATCH: _LIE_S,
    Reason.EQUIVOCATION: FOR_GOOD_S,
}
"""Seconds for the first offence of a kind; what is not here is no offence."""
LET_IN = frozenset({Reason.STATE_MISMATCH})
"""Who is aside for nothing else may open connections as before: it has to fetch its state again,
and of two peers the other is the only donor. Nor is a ring of others to break between the two."""


def hold_s(first_s: float, times: int) -> float:
    """Seconds aside: doubled with each time, and never very long, unless for ever."""
    if first_s >= FOR_GOOD_S:
        return first_s
    return min(first_s * 2.0 ** min(times - 1, 30), LONGEST_HOLD_S)


@dataclass(frozen=True)
class _Record:
    times: int
    until: float
    outside_until: float


class Quarantine:
    """Names are peer ids, or hosts where nobody has proved who it is. Thread-safe; seconds of one
    monotonic clock."""

    def __init__(self, first_hold_s: Mapping[Reason, float] = FIRST_HOLD_S) -> None:
        self._first_hold_s = first_hold_s
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}

    def offend(self, who: str, reason: Reason, now: float) -> float:
        """Notes what may be an offence; returns for how many seconds `who` is aside now."""
        first_s = self._first_hold_s.get(reason)
        with self._lock:
            known = self._records.get(who) or _Record(0, now, now)
            if first_s is None:
                return max(known.until - now, 0.0)
            times = known.times + 1 if now < known.until + FORGOTTEN_S else 1
            until = max(now + hold_s(first_s, times), known.until)
            outside_until = known.outside_until if reason in LET_IN else until
            self._records[who] = _Record(times, until, outside_until)
            self._make_room()
            return until - now

    def forgive(self, who: str) -> None:
        """It did what it was aside for not doing."""
        with self._lock:
            self._records.pop(who, None)

    def holds(self, who: str, now: float) -> bool:
        """Whether `who` is aside."""
        with self._lock:
            known = self._records.get(who)
            return known is not None and now < known.until

    def keeps_out(self, who: str, now: float) -> bool:
        """Whether `who` is aside, and may open no connection but for messages."""
        with self._lock:
            known = self._records.get(who)
            return known is not None and now < known.outside_until

    def is_for_good(self, who: str) -> bool:
        """Whether that will never end."""
        return self.holds(who, LONG_AFTER_S)

    def aside(self, now: float) -> frozenset[str]:
        """Everybody that is."""
        with self._lock:
            return frozenset([who for who, known in self._records.items() if now < known.until])

    def _make_room(self) -> None:
        while len(self._records) > MOST_REMEMBERED:
            del self._records[min(self._records, key=lambda who: self._records[who].until)]
