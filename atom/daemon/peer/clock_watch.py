"""Detection of a wrong clock on this machine, while other peers can still see it.

A lease expires by wall time, 8 s after it was issued. If a peer's clock is 8 s behind, its leases
are expired when they arrive. If it is 8 s ahead, the peer sees no valid leases. In both cases the
peer is alone, and no error says why. hivemind compares clocks only when a node joins the DHT.

An offset shows in the age that other peers' leases seem to have when they are renewed. With equal
clocks the youngest lease of the last 20 s seems at least 0 s old, and at most about 2 s: the time
between two renewals, or two readings. A lease that is not renewed grows old and does not count.
"""

from collections.abc import Callable, Iterable, Mapping

from atom.base.events import EventSink
from atom.swarm.records.lease import RENEW_SECONDS, Lease

WRONG_S = 2.0
"""Smallest offset that is reported: far below the 8 s at which a peer becomes invisible."""
WINDOW_S = 20.0
"""Age of the oldest reading that counts: some ten renewals, so that slow ones do not matter."""


def clock_offset_s(ages_s: Iterable[tuple[str, float]]) -> float:
    """Return the offset of our clock from the other peers' clocks, which most of them show.

    Args:
        ages_s: (peer id, age of a lease in seconds by our clock), of all recent readings.

    Returns:
        Seconds by which our clock is ahead (negative: behind), at least. 0.0 if there may be no
        offset, or there are no peers. Lying peers change the result only if they are at least half
        of all.
    """
    youngest = dict[str, float]()
    for peer, age_s in ages_s:
        youngest[peer] = min(age_s, youngest.get(peer, age_s))
    ages = youngest.values()
    offsets = sorted((min(age, 0.0) + max(age - RENEW_SECONDS, 0.0) for age in ages), key=abs)
    return offsets[(len(offsets) - 1) // 2] if offsets else 0.0


class ClockWatch:
    """Comparison of the clocks after each reading of leases. Call `look` on one thread."""

    def __init__(self, me: str, events: EventSink, note: Callable[[str], None]) -> None:
        """Prepare an empty window.

        Args:
            me: this peer's id, whose own lease does not count.
            events: gets `wrong-clock` once for each offset that appears.
            note: shows the user a message, at the same times.
        """
        self._me, self._events, self._note = me, events, note
        self._ages = list[tuple[float, str, float]]()
        """(monotonic time of the reading, peer id, age in seconds)"""
        self._issued: dict[str, float] = {}
        """Peer id → time of issue of its lease at the last reading, by that peer's clock."""
        self.problem = ""
        """Description of the offset for the user; empty if the clock is right. Thread-safe."""

    def look(self, leases: Mapping[str, Lease], unix_time: float, now: float) -> None:
        """Take a new reading into account, and report an offset when it appears.

        Args:
            leases: all leases that were read, by peer id.
            unix_time: time of our wall clock, in seconds since 1970.
            now: time of a monotonic clock, in seconds.
        """
        recent = [each for each in self._ages if each[0] > now - WINDOW_S]
        issued = {peer: lease.issued_at for peer, lease in leases.items() if peer != self._me}
        for peer, issued_at in issued.items():
            if issued_at > self._issued.get(peer, issued_at):
                recent.append((now, peer, unix_time - issued_at))
        self._ages, self._issued = recent, issued
        offset_s = clock_offset_s((peer, age) for _, peer, age in recent)
        if abs(offset_s) <= WRONG_S:
            self.problem = ""
            return
        way = "ahead of" if offset_s > 0 else "behind"
        was_right = not self.problem
        self.problem = (
            f"{abs(offset_s):.0f} s {way} other peers' clocks: they soon cannot see this peer"
        )
        if was_right:
            self._events.emit("wrong-clock", offset_s=round(offset_s, 1))
            self._note(f"this clock is {self.problem}; set it: `timedatectl set-ntp true`")
