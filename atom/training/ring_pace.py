"""How slow a ring may be: measured against the rings before it. Pure."""

from collections import deque

from atom.swarm.chain.ring_standing import Pace

SLOWEST_BYTES_PER_S = 64 * 1024.0
"""About half a megabit: whoever is slower makes everybody wait for hours."""
FRACTION = 20
"""A ring may be this many times slower than the best of the last ones."""
REMEMBERED = 16


class PaceBook:
    """What this peer's rings reached. One that was too slow halves what the next must reach: links
    do become slower, and then a few attempts find out."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=REMEMBERED)
        self._given_way = 0

    def finished(self, byte_count: int, seconds: float) -> None:
        """A ring moved this many bytes of gradients to us in this time."""
        self._rates.append(byte_count / max(seconds, 1e-3))
        self._given_way = 0

    def too_slow(self) -> None:
        self._given_way += 1

    def pace(self) -> Pace:
        """Of the next ring."""
        best = max(self._rates, default=0.0)
        wanted = best / FRACTION / 2.0 ** min(self._given_way, 60)
        return Pace(bytes_per_s=max(wanted, SLOWEST_BYTES_PER_S))
