"""A volunteer's bandwidth: caps shared by all channels, and what goes first in each direction:
exchanges, then states and results, then a run's text.

Bytes go in small slices, so that a slow link shows steady progress instead of silence, and a
capped reader slows the sender down through TCP itself.
"""

import math
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

SLICE_BYTES, SMALLEST_SLICE_BYTES = 16 * 1024, 1024
TURN_S = 0.015
"""Of a slow line, for one slice: with 64 streams in turn none is silent for a second."""
PART_BYTES = 256 * 1024
"""That is sent or received at a time, at most."""
SHARE_BEHIND = 0.25
"""Bytes that may pass for each byte of what goes first. Below it a joiner of a swarm that does
nothing but average would never catch up: four donors' shares carry one result per round."""
_QUIET_S = 0.25
"""For so long after its last bytes what goes first counts as under way."""
_HEARTBEAT_BYTES = 1024
"""No more says that an exchange waits, not that it is at work."""
_MOST_CREDIT_BYTES = 1024 * 1024
_SMALLEST_PART_BYTES = 8 * 1024


class Rank(IntEnum):
    """What goes before what. Anything else waits for nobody."""

    EXCHANGE = 1
    STATE = 2
    TEXT = 3


class Rate(NamedTuple):
    """Arguments of a `TokenBucket`."""

    per_s: float
    burst: float


class TokenBucket:
    """Lets `rate_per_s` through on average and `burst` at once. Pure arithmetic on a given time:
    the caller sleeps. Thread-safe."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        """Create a full bucket of positive rate and burst; a rate of `math.inf` means no limit."""
        self._lock = threading.Lock()
        self.change(rate_per_s, burst)

    def change(self, rate_per_s: float, burst: float) -> None:
        """Set new limits and fill the bucket."""
        with self._lock:
            self._rate_per_s = rate_per_s
            self._burst = burst
            self._tokens = burst
            self._at = math.inf

    def slices(self, view: memoryview) -> Iterator[memoryview]:
        """What one channel takes at a time: without a limit everything."""
        size = len(view)
        if not math.isinf(self._rate_per_s):
            size = int(min(max(self._rate_per_s * TURN_S, SMALLEST_SLICE_BYTES), SLICE_BYTES))
        return (view[start : start + size] for start in range(0, len(view), max(size, 1)))

    def take(self, amount: float, now: float) -> float:
        """Spends `amount` (it may exceed the burst) and returns how many seconds to wait first."""
        if math.isinf(self._rate_per_s):
            return 0.0
        with self._lock:
            self._refill(now)
            self._tokens -= amount
            return max(-self._tokens / self._rate_per_s, 0.0)

    def owes(self, amount: float, now: float) -> float:
        """Return the seconds that `take` would return at a finite rate, and spend nothing."""
        with self._lock:
            self._refill(now)
            return max((amount - self._tokens) / self._rate_per_s, 0.0)

    def allow(self, now: float) -> bool:
        """Spends one token if there is one; for dropping instead of waiting."""
        with self._lock:
            self._refill(now)
            allowed = self._tokens >= 1
            self._tokens -= allowed
            return allowed

    def _refill(self, now: float) -> None:
        passed_s = max(now - self._at, 0.0)
        self._at = now
        self._tokens = min(self._burst, self._tokens + passed_s * self._rate_per_s)


class TransferThrottle:
    """While something goes first, others get a share of what that gets through. Pure arithmetic on
    a given time. Thread-safe.

    The line's speed need not be known: what goes first takes what the line has to give. When it has
    ended, or is silent, the others have the line to themselves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_until = -math.inf
        self._credit_bytes = 0.0

    def passes(self, count: int, now: float) -> None:
        """So much of what goes first."""
        with self._lock:
            if count > _HEARTBEAT_BYTES:
                self._first_until = now + _QUIET_S
            self._credit_bytes = min(self._credit_bytes + SHARE_BEHIND * count, _MOST_CREDIT_BYTES)

    def ended(self) -> None:
        """Nothing of it is to come. Who missed an exchange fetches its result now, and is in the
        next one if that is quick: a wait here is a wait each round, and others may need less to
        begin one."""
        with self._lock:
            self._first_until = -math.inf

    def take(self, most: int, now: float) -> int:
        """How many bytes, of `most`, pass next; 0: ask again later.

        Behind something no more than the credit, or a little, as a debt: others wait until a debt
        is paid off, and would look dead to their peers.
        """
        with self._lock:
            if now > self._first_until:
                return most
            if self._credit_bytes <= 0:
                return 0
            count = min(max(int(self._credit_bytes), _SMALLEST_PART_BYTES), most)
            self._credit_bytes -= count
            return count


class Precedence:
    """Of all channels, in one direction. Thread-safe."""

    def __init__(self) -> None:
        self.behind = {rank: TransferThrottle() for rank in (Rank.STATE, Rank.TEXT)}

    def take(self, rank: Rank, most: int, now: float) -> int:
        """How many bytes of that rank, of `most`, pass next; 0: ask again later."""
        most = min(most, PART_BYTES)
        count = self.behind[rank].take(most, now) if rank in self.behind else most
        for other, throttle in self.behind.items():
            if other > rank:
                throttle.passes(count, now)
        return count

    def exchange_ended(self) -> None:
        for throttle in self.behind.values():
            throttle.ended()


class Bandwidth:
    """Caps on what all channels carry together, which may change while they are open."""

    def __init__(
        self, upload_bits_per_s: float | None = None, download_bits_per_s: float | None = None
    ) -> None:
        """None: no cap."""
        self.upload, self.download = TokenBucket(math.inf, 1.0), TokenBucket(math.inf, 1.0)
        self._lock = threading.Lock()
        self.sent_bytes = self.received_bytes = 0
        """By all channels so far, without handshakes and what TLS adds."""
        self.sending, self.receiving = Precedence(), Precedence()
        self.change(upload_bits_per_s, download_bits_per_s)

    def change(self, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        """For all channels, from their next slice on; a quarter of a second's worth may go at once.
        None: no cap."""
        self.upload.change(*_rate_and_burst(upload_bits_per_s))
        self.download.change(*_rate_and_burst(download_bits_per_s))

    def both_ways(self) -> int:
        """Bytes so far."""
        with self._lock:
            return self.sent_bytes + self.received_bytes

    def carried(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent_bytes += sent
            self.received_bytes += received


def _rate_and_burst(bits_per_s: float | None) -> tuple[float, float]:
    if bits_per_s is None:
        return math.inf, SLICE_BYTES
    bytes_per_s = bits_per_s / 8
    return bytes_per_s, max(bytes_per_s / 4, SLICE_BYTES)
