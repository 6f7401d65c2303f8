"""Peers that are put aside for what they did, and for how long. Pure: the time is given."""

import threading

from atom.base.reasons import Reason

FIRST_HOLD_S = 5.0
LONGEST_HOLD_S = 600.0
FORGOTTEN_S = 600.0
"""After the last hold has ended: then the next offence is the first again."""
MOST_REMEMBERED = 4096
OFFENCES = frozenset(
    {
        Reason.TIMEOUT,
        Reason.TOO_SLOW,
        Reason.STATE_MISMATCH,
        Reason.TOO_LARGE,
        Reason.MALFORMED,
        Reason.BAD_SIGNATURE,
        Reason.BAD_CERTIFICATE,
        Reason.BAD_WEIGHT,
        Reason.HASH_MISMATCH,
        Reason.EQUIVOCATION,
    }
)
"""What is not here is no offence."""


class Quarantine:
    """Peers that are put aside: nobody asks them to take part in a round. An offence puts a peer
    aside, for twice as long each time.

    Kept in memory only, bounded, and never for long: a damaged disk looks like a lie. A peer that
    is aside may still connect, within the same limits as all others: a quorum may need its vote.
    Thread-safe; times are seconds of one monotonic clock.
    """

    def __init__(self, first_hold_s: float = FIRST_HOLD_S) -> None:
        self._first_hold_s = first_hold_s
        self._lock = threading.Lock()
        self._records: dict[str, tuple[int, float]] = {}
        """Per peer id: offences, and until when it is aside."""

    def offend(self, peer_id: str, reason: Reason, now: float) -> float:
        """Notes what may be an offence; returns for how many seconds the peer is aside now."""
        with self._lock:
            times, until = self._records.get(peer_id, (0, now))
            if reason in OFFENCES:
                times = times + 1 if now < until + FORGOTTEN_S else 1
                until = max(now + hold_s(self._first_hold_s, times), until)
                self._records[peer_id] = (times, until)
            while len(self._records) > MOST_REMEMBERED:
                del self._records[min(self._records, key=lambda each: self._records[each][1])]
            return max(until - now, 0.0)

    def forgive(self, peer_id: str) -> None:
        """It did what it was aside for not doing."""
        with self._lock:
            self._records.pop(peer_id, None)

    def aside(self, now: float) -> frozenset[str]:
        """The peers that are aside."""
        with self._lock:
            return frozenset(who for who, (_, until) in self._records.items() if now < until)


def hold_s(first_s: float, times: int) -> float:
    """Seconds aside: doubled with each time, and never very long."""
    return min(first_s * 2.0 ** min(times - 1, 30), LONGEST_HOLD_S)
