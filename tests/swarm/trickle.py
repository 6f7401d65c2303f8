"""A donor that never falls silent, and takes its time."""

from collections.abc import Callable

from atom.swarm.stream.bandwidth import Bandwidth, Rank, TransferThrottle
from atom.swarm.stream.frames import Channel


class Trickle(TransferThrottle):
    """Sends small parts, at a rate."""

    def __init__(self, bytes_per_s: float, part_bytes: int = 32 * 1024) -> None:
        super().__init__()
        self._bytes_per_s, self._part_bytes = bytes_per_s, part_bytes
        self._next_at = 0.0

    def take(self, most: int, now: float) -> int:
        if now < self._next_at:
            return 0
        count = min(most, self._part_bytes)
        self._next_at = now + count / self._bytes_per_s
        return count

    def through(self, serve: Callable[[Channel], None]) -> Callable[[Channel], None]:
        """Serves blobs like that."""
        bandwidth = Bandwidth()
        bandwidth.sending.behind[Rank.STATE] = self

        def slowly(channel: Channel) -> None:
            channel.bandwidth = bandwidth
            serve(channel)

        return slowly
