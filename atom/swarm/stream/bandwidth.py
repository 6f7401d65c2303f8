"""Bandwidth of a volunteer: caps that all channels share, and their priority in each direction.

Exchanges come first, then states and results, then a run's text. Bytes are sent and received in
small slices, so that a slow link shows steady progress instead of silence, and a capped reader
slows down the sender through TCP itself.
"""

import math
import threading
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

SLICE_BYTES, SMALLEST_SLICE_BYTES = 16 * 1024, 1024
TURN_S = 0.015
"""Time that one slice takes on a capped line: with 64 streams in turn, each sends a slice at least
once a second."""
PART_BYTES = 256 * 1024
"""Most bytes that pass at a time."""
SHARE_BEHIND = 0.25
"""Bytes of a lower rank that may pass for each byte of a higher rank.

With less, a peer that joins a swarm that averages all the time would never catch up: the shares of
four donors carry one result per round.
"""
_QUIET_S = 0.25
"""Time after its last bytes for which a transfer of a higher rank counts as under way."""
_HEARTBEAT_BYTES = 1024
"""Largest count of bytes that may be a WAITING frame: it shows that an exchange waits, not that it
transfers data."""
_MOST_CREDIT_BYTES = 1024 * 1024
_SMALLEST_PART_BYTES = 8 * 1024


class Rank(IntEnum):
    """Priority of a transfer; the lowest number comes first. All other traffic never waits."""

    EXCHANGE = 1
    STATE = 2
    TEXT = 3


class Rate(NamedTuple):
    """Arguments of a `TokenBucket`."""

    per_s: float
    burst: float


class TokenBucket:
    """Limiter that admits `rate_per_s` on average and `burst` at once.

    It only computes waiting times from the times that are passed to it; the caller sleeps.
    Thread-safe.
    """

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
        """Split bytes into slices that one channel sends at a time; without a limit, one slice."""
        size = len(view)
        if not math.isinf(self._rate_per_s):
            size = int(min(max(self._rate_per_s * TURN_S, SMALLEST_SLICE_BYTES), SLICE_BYTES))
        return (view[start : start + size] for start in range(0, len(view), max(size, 1)))

    def take(self, amount: float, now: float) -> float:
        """Spend `amount`, which may exceed the burst; return the seconds to wait first."""
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
        """Spend one token and return True, or return False if there is none.

        Callers that drop work instead of waiting use it.
        """
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
    """Limiter of lower-rank transfers: while one of higher rank runs, they get a share.

    The speed of the line need not be known: the transfer of higher rank takes all it can. When that
    has ended or is silent, lower ranks may use the whole line. Works only on the times that are
    passed to it. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_until = -math.inf
        self._credit_bytes = 0.0

    def passes(self, count: int, now: float) -> None:
        """Record that `count` bytes of a higher rank pass now."""
        with self._lock:
            if count > _HEARTBEAT_BYTES:
                self._first_until = now + _QUIET_S
            self._credit_bytes = min(self._credit_bytes + SHARE_BEHIND * count, _MOST_CREDIT_BYTES)

    def ended(self) -> None:
        """Record that the transfer of higher rank has ended, so that lower ranks need not wait.

        A peer that missed an exchange now fetches its result, and joins the next exchange only if
        that is quick enough.
        """
        with self._lock:
            self._first_until = -math.inf

    def take(self, most: int, now: float) -> int:
        """Return how many bytes, at most `most`, may pass next; 0 if the caller has to ask again.

        While a transfer of higher rank runs, the credit passes, or a small part beyond it as a
        debt. A large debt would keep all lower-rank channels silent until it is paid, and their
        peers would take them for dead.
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
    """Priorities among all channels in one direction. Thread-safe."""

    def __init__(self) -> None:
        self.behind = {rank: TransferThrottle() for rank in (Rank.STATE, Rank.TEXT)}

    def take(self, rank: Rank, most: int, now: float) -> int:
        """Return how many bytes of this rank may pass next; 0 if the caller has to ask again.

        Args:
            rank: Rank of the channel.
            most: Most bytes that the channel would send or receive now.
            now: Time in seconds of a monotonic clock.
        """
        most = min(most, PART_BYTES)
        count = self.behind[rank].take(most, now) if rank in self.behind else most
        for other, throttle in self.behind.items():
            if other > rank:
                throttle.passes(count, now)
        return count

    def exchange_ended(self) -> None:
        """Let transfers of state and text use the whole line again: an exchange has ended."""
        for throttle in self.behind.values():
            throttle.ended()


class Bandwidth:
    """Caps on the traffic of all channels together. They may change while channels are open."""

    def __init__(
        self, upload_bits_per_s: float | None = None, download_bits_per_s: float | None = None
    ) -> None:
        """Create caps for both directions; None means no cap."""
        self.upload, self.download = TokenBucket(math.inf, 1.0), TokenBucket(math.inf, 1.0)
        self._lock = threading.Lock()
        self.sent_bytes = self.received_bytes = 0
        """Bytes of all channels so far, without handshakes and the overhead of TLS."""
        self.sending, self.receiving = Precedence(), Precedence()
        self.change(upload_bits_per_s, download_bits_per_s)

    def change(self, upload_bits_per_s: float | None, download_bits_per_s: float | None) -> None:
        """Set new caps for all channels, from their next slice on; None means no cap.

        The bytes of a quarter of a second may pass at once.
        """
        self.upload.change(*_rate_and_burst(upload_bits_per_s))
        self.download.change(*_rate_and_burst(download_bits_per_s))

    def total_bytes(self) -> int:
        """Return the bytes sent and received so far."""
        with self._lock:
            return self.sent_bytes + self.received_bytes

    def carried(self, sent: int = 0, received: int = 0) -> None:
        """Count bytes that a channel sent and received. Thread-safe."""
        with self._lock:
            self.sent_bytes += sent
            self.received_bytes += received


def _rate_and_burst(bits_per_s: float | None) -> tuple[float, float]:
    if bits_per_s is None:
        return math.inf, SLICE_BYTES
    bytes_per_s = bits_per_s / 8
    return bytes_per_s, max(bytes_per_s / 4, SLICE_BYTES)
