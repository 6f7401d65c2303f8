"""Rounds first: while a ring sends, state transfers get a share of what it sends and no more.

The link's speed is not known, and need not be: whatever the ring gets through is what the link has
to give. When the ring falls silent (computing, waiting for somebody, between rounds), transfers
have the link to themselves at once. Pure arithmetic on a given time.
"""

import math
import threading

SHARE = 0.25
"""Bytes that transfers may send for each byte of a running ring. Below it a joiner of a swarm that
does nothing but average would never catch up: four donors' shares carry one result per round."""
_QUIET_S = 0.25
_RUNNING_BYTES = 64 * 1024
"""Of the last moments, fading: less is a heartbeat, not a ring at work."""
_MOST_RECENT_BYTES = math.e * _RUNNING_BYTES
"""Whatever a ring has sent, it counts as running for `_QUIET_S` after its last bytes."""
_MOST_CREDIT_BYTES = 1024 * 1024
_LOOK_S = 0.01
_SMALLEST_PART_BYTES = 8 * 1024
PART_BYTES = 256 * 1024


class Courtesy:
    """One per peer, over all its connections. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent_bytes = 0.0
        self._at = 0.0
        self._credit_bytes = 0.0

    def ring_sent(self, count: int, now: float) -> None:
        with self._lock:
            self._fade(now)
            self._recent_bytes = min(self._recent_bytes + count, _MOST_RECENT_BYTES)
            self._credit_bytes = min(self._credit_bytes + SHARE * count, _MOST_CREDIT_BYTES)

    def part_bytes(self, now: float) -> int:
        """How much a transfer should send at a time. Beside a ring no more than what is saved up:
        others that wait as well would hear nothing for as long as a large part's debt is paid off,
        and many uploads beside a slow ring looked dead to who asked."""
        with self._lock:
            self._fade(now)
            if self._recent_bytes < _RUNNING_BYTES:
                return PART_BYTES
            return min(max(int(self._credit_bytes), _SMALLEST_PART_BYTES), PART_BYTES)

    def wait_s(self, count: int, now: float) -> float:
        """Before a transfer sends `count` bytes: 0.0, and they are accounted for; or how long to
        wait before asking again."""
        with self._lock:
            self._fade(now)
            if self._recent_bytes < _RUNNING_BYTES:
                return 0.0
            if self._credit_bytes <= 0:
                return _LOOK_S
            self._credit_bytes -= count  # into debt: a part may be larger than what is saved up
            return 0.0

    def _fade(self, now: float) -> None:
        passed_s = max(now - self._at, 0.0)
        self._recent_bytes *= math.exp(-passed_s / _QUIET_S)
        self._at = now
