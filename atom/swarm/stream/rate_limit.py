"""A token bucket: pure arithmetic on a given time; who sleeps, and how, is the caller's choice."""

import math
import threading


class TokenBucket:
    """Lets `rate_per_s` through on average and `burst` at once. Thread-safe; shareable."""

    def __init__(self, rate_per_s: float, burst: float) -> None:
        """Raises: ValueError unless both are positive. `math.inf` means no limit."""
        self._lock = threading.Lock()
        self.change(rate_per_s, burst)

    def change(self, rate_per_s: float, burst: float) -> None:
        """From now on these; what was spent is forgotten. Raises: as `__init__`."""
        if rate_per_s <= 0 or burst <= 0:
            raise ValueError("rate and burst are positive")
        with self._lock:
            self._rate_per_s = rate_per_s
            self._burst = burst
            self._tokens = burst
            self._at: float | None = None

    @property
    def unlimited(self) -> bool:
        return math.isinf(self._rate_per_s)

    def take(self, amount: float, now: float) -> float:
        """Spends `amount` (it may exceed the burst) and returns how many seconds to wait first."""
        if math.isinf(self._rate_per_s):
            return 0.0
        with self._lock:
            passed = 0.0 if self._at is None else max(now - self._at, 0.0)
            self._at = now
            self._tokens = min(self._burst, self._tokens + passed * self._rate_per_s) - amount
            return max(-self._tokens / self._rate_per_s, 0.0)

    def allow(self, now: float) -> bool:
        """Spends one token if there is one; for dropping instead of waiting."""
        with self._lock:
            passed = 0.0 if self._at is None else max(now - self._at, 0.0)
            self._at = now
            self._tokens = min(self._burst, self._tokens + passed * self._rate_per_s)
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
