"""What this peer's exchanges tell of speed: of each way to another, and how slow the next may be.

A member of an exchange is either busy sending or waits for what others will bring. One that sends
for most of the time holds it up: then the pace is its line's speed. The others only learn that
theirs is no slower.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from atom.swarm.exchange.allreduce import Channels
from atom.swarm.exchange.choice import averages_moved
from atom.swarm.exchange.reduction import Terms
from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S, Link, short_name
from atom.swarm.stream.frames import SLOWEST_BYTES_PER_S, Channel, Pace

FRACTION = 20
"""An exchange may be this many times slower than the best of the last ones."""
REMEMBERED = 16
"""Exchanges."""
KEPT = 64
"""Peers; the one met longest ago is forgotten first."""
BUSY_SHARE = 0.5
"""Of an exchange's time in sending: from here on the line is what held it up."""
LEAST_BYTES = 1 << 20
"""What is shorter says more about buffers than about lines."""
RATE_KEPT_S = 1800.0
"""A slow line that no exchange uses any more deserves another look after this long."""


class SpeedBook:
    """Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._ways: dict[str, tuple[Link, float]] = {}
        """By peer id, with the time at which the speed was measured."""
        self._rates = deque[float](maxlen=REMEMBERED)
        self._given_way = 0

    def finished(self, terms: Terms, channels: Channels, elements: int, seconds: float) -> None:
        """An exchange of so many elements over these channels took so long."""
        shares = terms.shares or (1,) * len(terms.members)
        moved = [averages_moved(shares, rank) for rank in range(len(shares))]
        wire_bytes, seconds = terms.codec.wire_bytes(elements), max(seconds, 1e-3)
        ours = all(right.sending_s >= BUSY_SHARE * seconds for right in channels.right)
        with self._lock:
            self._rates.append(4 * elements * moved[terms.rank] / seconds)
            self._given_way = 0
            for right in channels.right:
                line = terms.rank if ours else terms.members.index(right.peer_id)
                self._note(right, moved[line] * wire_bytes, seconds)

    def too_slow(self) -> None:
        """An exchange was: that halves what the next must reach. Lines do become slower, and then
        a few attempts find out."""
        with self._lock:
            self._given_way += 1

    def pace(self) -> Pace:
        """Of the next exchange."""
        with self._lock:
            best, halved = max(self._rates, default=0.0), 2.0 ** min(self._given_way, 60)
        return Pace(bytes_per_s=max(best / FRACTION / halved, SLOWEST_BYTES_PER_S))

    def links(self, most: int) -> dict[str, Link]:
        """To the peers met last."""
        with self._lock:
            known = [
                (peer, replace(way, bytes_per_s=self._rate(peer)))
                for peer, (way, _) in self._ways.items()
            ]
        return dict(known[-most:])

    def _note(self, right: Channel, count: float, seconds: float) -> None:
        rate, pace = self._rate(right.peer_id), count / seconds
        _, rated_at = self._ways.pop(right.peer_id, (None, -math.inf))
        if count >= LEAST_BYTES and (right.sending_s >= BUSY_SHARE * seconds or pace > rate):
            rate, rated_at = pace, self._now()
        round_trip_s = min(right.round_trip_s, LONGEST_ROUND_TRIP_S)
        way = Link(short_name(right.peer_id), round_trip_s, rate)
        self._ways[right.peer_id] = way, rated_at
        while len(self._ways) > KEPT:
            del self._ways[next(iter(self._ways))]

    def _rate(self, peer_id: str) -> float:
        """Infinite: its way never held an exchange up, lately."""
        way, rated_at = self._ways.get(peer_id, (None, -math.inf))
        return way.bytes_per_s if way and self._now() - rated_at <= RATE_KEPT_S else math.inf
