"""How slow an exchange may be, measured against those before it. Pure."""

from collections import deque
from dataclasses import dataclass

SLOWEST_BYTES_PER_S = 64 * 1024.0
"""About half a megabit: a slower member makes everybody wait for hours."""
FRACTION = 20
"""An exchange may be this many times slower than the best of the last ones."""
REMEMBERED = 16


@dataclass(frozen=True)
class Pace:
    """The least that an exchange must do: bytes per second on average, after some seconds to begin.

    Everybody's bytes depend on everybody else's, so all members fall behind this line together.
    """

    slack_s: float = 5.0
    bytes_per_s: float = SLOWEST_BYTES_PER_S

    def due_s(self, done_bytes: int) -> float:
        """Seconds from the start by which more than `done_bytes` have to be through."""
        return self.slack_s + done_bytes / self.bytes_per_s


class PaceBook:
    """What this peer's exchanges reached. One that was too slow halves what the next must reach:
    links do become slower, and then a few attempts find out."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=REMEMBERED)
        self._given_way = 0

    def finished(self, byte_count: float, seconds: float) -> None:
        """An exchange moved this many bytes of gradients to us in this time."""
        self._rates.append(byte_count / max(seconds, 1e-3))
        self._given_way = 0

    def too_slow(self) -> None:
        self._given_way += 1

    def pace(self) -> Pace:
        """Of the next exchange."""
        best = max(self._rates, default=0.0)
        wanted = best / FRACTION / 2.0 ** min(self._given_way, 60)
        return Pace(bytes_per_s=max(wanted, SLOWEST_BYTES_PER_S))
