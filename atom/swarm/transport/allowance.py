"""How much is read of others' messages: to read one takes longer than to send it.

What counts is who sends, not over how many connections. Identities are free: so strangers have less
each than whom the run knows, and no more than one of those all together.
"""

import threading
from collections import OrderedDict
from collections.abc import Container

from atom.swarm.stream.rate_limit import TokenBucket

MESSAGES_BYTES_PER_S, MESSAGES_BURST_BYTES = 256 * 1024.0, 2 * 1024 * 1024.0
STRANGERS_SHARE = 1 / 16
"""Of one stranger: a newcomer's promises are short."""
_BYTES_PER_MESSAGE = 256
"""That each counts beside its own."""
_MOST_REMEMBERED = 4096


class Allowance:
    """Thread-safe. Times are seconds of one monotonic clock."""

    def __init__(self, known: Container[str]) -> None:
        """`known`: asked each time. Who is not in it is a stranger."""
        self._known = known
        self._lock = threading.Lock()
        self._strangers = _bucket(1.0)
        self._buckets: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()

    def wait_s(self, peer_id: str, count: int, now: float) -> float:
        """After a message of so many bytes: how long its reader rests before the next."""
        count, known = count + _BYTES_PER_MESSAGE, peer_id in self._known
        wait_s = self._of(peer_id, known).take(count, now)
        return wait_s if known else max(wait_s, self._strangers.take(count, now))

    def _of(self, peer_id: str, known: bool) -> TokenBucket:
        with self._lock:
            bucket = self._buckets.pop((peer_id, known), None)
            if bucket is None:
                bucket = _bucket(1.0 if known else STRANGERS_SHARE)
            self._buckets[peer_id, known] = bucket  # the last one written is the last one asked for
            if len(self._buckets) > _MOST_REMEMBERED:
                self._buckets.popitem(last=False)
            return bucket


def _bucket(share: float) -> TokenBucket:
    return TokenBucket(share * MESSAGES_BYTES_PER_S, share * MESSAGES_BURST_BYTES)
