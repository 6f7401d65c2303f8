"""What this peer measured of its ways to others: round trips from handshakes, speed from rings.

A member of a ring is either busy sending or waits for what its left neighbour will bring. A member
that sends for most of the ring's time holds it up: then the ring's pace is this link's speed (or
this box's, which comes to the same). The others only learn that their link is no slower.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S, Link

KEPT = 64
"""Peers; the one met longest ago is forgotten first."""
BUSY_SHARE = 0.5
"""Of a ring's time in sending: from here on the link is what held it up."""
LEAST_BYTES = 1 << 20
"""What is shorter says more about buffers than about links."""
RATE_KEPT_S = 1800.0
"""A slow link that no ring uses any more deserves another look after this long."""
_SMOOTHING = 0.3


@dataclass(frozen=True)
class _Entry:
    round_trip_s: float | None = None
    bytes_per_s: float | None = None
    rated_at: float = 0.0


class LinkBook:
    """Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def met(self, peer_id: str, round_trip_s: float) -> None:
        """An answer took this long. A faster one counts at once, a slower one little by little:
        the other end may have been busy."""
        sample = min(max(round_trip_s, 0.0), LONGEST_ROUND_TRIP_S)
        with self._lock:
            entry = self._entries.get(peer_id, _Entry())
            before = entry.round_trip_s
            if before is not None and sample > before:
                sample = before + _SMOOTHING * (sample - before)
            self._put(peer_id, replace(entry, round_trip_s=sample))

    def carried(self, peer_id: str, count: int, sending_s: float, seconds: float) -> None:
        """A ring of `seconds` sent that neighbour `count` bytes, and was at it for `sending_s`."""
        if count < LEAST_BYTES or seconds <= 0:
            return
        pace, busy = count / seconds, sending_s / seconds >= BUSY_SHARE
        with self._lock:
            entry = self._entries.get(peer_id, _Entry())
            before = entry.bytes_per_s
            if before is None or self._now() - entry.rated_at > RATE_KEPT_S:
                rate = pace if busy else None
            elif busy or pace > before:
                rate = before + _SMOOTHING * (pace - before)
            else:
                return
            self._put(peer_id, replace(entry, bytes_per_s=rate, rated_at=self._now()))

    def links(self, most: int) -> dict[str, Link]:
        """Of the peers met last; only those whose round trip is known."""
        with self._lock:
            known = [
                (peer_id, Link(entry.round_trip_s, self._rate(entry)))
                for peer_id, entry in self._entries.items()
                if entry.round_trip_s is not None
            ]
        return dict(known[-most:])

    def _rate(self, entry: _Entry) -> float:
        fresh = entry.bytes_per_s is not None and self._now() - entry.rated_at <= RATE_KEPT_S
        return entry.bytes_per_s if fresh and entry.bytes_per_s is not None else float("inf")

    def _put(self, peer_id: str, entry: _Entry) -> None:
        self._entries.pop(peer_id, None)  # the last one written is the last one met
        self._entries[peer_id] = entry
        while len(self._entries) > KEPT:
            del self._entries[next(iter(self._entries))]
