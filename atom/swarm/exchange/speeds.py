"""Speeds measured in this peer's exchanges, and the slowest pace that the next exchange may have.

A member of an exchange is either sending or waiting for bytes of other members. A member that sends
for most of the time holds up the exchange: then the exchange's pace is the speed of that member's
line. All other members only learn that their lines are at least as fast.
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
"""Factor by which an exchange may be slower than the fastest of the last exchanges."""
REMEMBERED = 16
"""Number of exchanges whose rates are kept."""
KEPT = 64
"""Number of peers whose speed is kept; the peer met longest ago is forgotten first."""
BUSY_SHARE = 0.5
"""Fraction of an exchange's time spent in sending from which on the line held up the exchange."""
LEAST_BYTES = 1 << 20
"""Least bytes of a measurement: shorter transfers measure buffers rather than lines."""
RATE_KEPT_S = 1800.0
"""Time after which a measured speed is forgotten, so that a slow line that no exchange has used
since is tried again."""


class SpeedBook:
    """Speeds of the connections to other peers, and rates of the last exchanges. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._links: dict[str, tuple[Link, float]] = {}
        """Link to each peer, by peer id, and the time at which its speed was measured."""
        self._rates = deque[float](maxlen=REMEMBERED)
        self._given_way = 0

    def finished(self, terms: Terms, channels: Channels, elements: int, seconds: float) -> None:
        """Record the speed of a completed exchange.

        Args:
            terms: Terms of the exchange.
            channels: Its connections.
            elements: Elements of its arena.
            seconds: Its duration.
        """
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
        """Record that an exchange was too slow: halve the pace that the next one must reach.

        If a line has become slower, a few attempts find a pace that it can reach.
        """
        with self._lock:
            self._given_way += 1

    def pace(self) -> Pace:
        """Return the least pace of the next exchange."""
        with self._lock:
            best, halved = max(self._rates, default=0.0), 2.0 ** min(self._given_way, 60)
        return Pace(bytes_per_s=max(best / FRACTION / halved, SLOWEST_BYTES_PER_S))

    def links(self, most: int) -> dict[str, Link]:
        """Return the links to the peers met last, by peer id; at most `most`."""
        with self._lock:
            known = [
                (peer, replace(link, bytes_per_s=self._rate(peer)))
                for peer, (link, _) in self._links.items()
            ]
        return dict(known[-most:])

    def _note(self, right: Channel, count: float, seconds: float) -> None:
        rate, pace = self._rate(right.peer_id), count / seconds
        _, rated_at = self._links.pop(right.peer_id, (None, -math.inf))
        if count >= LEAST_BYTES and (right.sending_s >= BUSY_SHARE * seconds or pace > rate):
            rate, rated_at = pace, self._now()
        round_trip_s = min(right.round_trip_s, LONGEST_ROUND_TRIP_S)
        link = Link(short_name(right.peer_id), round_trip_s, rate)
        self._links[right.peer_id] = link, rated_at
        while len(self._links) > KEPT:
            del self._links[next(iter(self._links))]

    def _rate(self, peer_id: str) -> float:
        """Return the measured speed to a peer in bytes per second; infinite if this connection held
        up no exchange lately."""
        link, rated_at = self._links.get(peer_id, (None, -math.inf))
        return link.bytes_per_s if link and self._now() - rated_at <= RATE_KEPT_S else math.inf
