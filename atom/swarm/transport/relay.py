"""A relay between two peers that cannot be dialled: bytes from one connection to the other.

One of them connects to the relay and names the other, which keeps a line to the relay and is
called. Then the relay copies bytes. The two run TLS with each other inside, so all it sees is
ciphertext; it knows who talks to whom, and how much.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.stream.bandwidth import SLICE_BYTES, TokenBucket
from atom.swarm.stream.frames import Channel, Patience
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.transport.limits import Endpoint
from atom.swarm.transport.reverse_connections import ReverseConnections

_PIECE_BYTES = 64 * 1024
_SILENCE_S = 120.0
_STUCK_S = 15.0


@dataclass
class Pair:
    """Two connections that are joined. A ring's bytes go one way only, for as long as it takes: so
    silence is that of both directions."""

    carried_at: float
    """When either direction last brought something, on the endpoint's clock."""
    ended: bool = False
    """One direction is over, and with it the other."""


class Relay:
    """Connections that this peer passes on. Thread-safe."""

    def __init__(
        self, endpoint: Endpoint, reverse: ReverseConnections, knows: Callable[[str], bool]
    ) -> None:
        """`knows`: whether a peer takes part in the run, as far as its lease says."""
        self._endpoint = endpoint
        self._reverse = reverse
        self._knows = knows
        rate = endpoint.limits.relay_bytes_per_s
        self._bucket = TokenBucket(rate, max(rate / 4, _PIECE_BYTES)) if rate > 0 else None
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held by the one direction that waits for bandwidth: all pairs together take from the
        box's caps as one connection does."""
        self._far: dict[Channel, SocketStream | None] = {}
        self.passed_bytes = 0

    @property
    def offered(self) -> bool:
        return self._bucket is not None

    def reserve(self, channel: Channel) -> None:
        """Calls the peer that `channel` is for, before `channel` is told that it may begin.

        Raises: PeerRefused: NOT_FOUND (no relay here, not for strangers, or that peer keeps no line
        to us), BUSY, TIMEOUT (it does not come).
        """
        target = channel.tag.decode(errors="replace")
        reachable = self.offered and self._reverse.has_line(target)
        if not reachable or not self._knows(channel.peer_id):
            raise PeerRefused(Reason.NOT_FOUND, "no way from here")
        limits, known = self._endpoint.limits, self._endpoint.known
        with self._lock:
            asking = [each.peer_id for each in self._far]
            if not known.has_room(channel.peer_id, asking, limits.relay_pairs):
                raise PeerRefused(Reason.BUSY, "enough is relayed here")
            self._far[channel] = None
        try:
            far = self._reverse.call(target, limits.connect_s)
        except OSError as error:
            self.drop(channel)
            raise PeerRefused(Reason.TIMEOUT, str(error)[:100]) from error
        with self._lock:
            if channel in self._far:
                self._far[channel] = far
                return
        far.close()  # the caller left meanwhile

    def drop(self, channel: Channel) -> None:
        """`channel` ended: so does what it was joined with, if anything."""
        with self._lock:
            far = self._far.pop(channel, None)
        if far is not None:
            far.close()

    def splice(self, channel: Channel) -> None:
        """Copies both ways until either end leaves."""
        near, far = channel.stream, self._far.get(channel)
        if far is None or not isinstance(near, SocketStream):
            return
        pair = Pair(self._endpoint.clock.now())
        self._endpoint.threads.start("atom-relay", lambda: self._copy(far, near, pair))
        self._copy(near, far, pair)

    def _copy(self, source: SocketStream, target: SocketStream, pair: Pair) -> None:
        """One direction; ends both when it ends."""
        bandwidth = self._endpoint.bandwidth
        buffer = memoryview(bytearray(_PIECE_BYTES))
        try:
            while not pair.ended:
                capped = not (bandwidth.upload.unlimited and bandwidth.download.unlimited)
                piece = buffer[:SLICE_BYTES] if capped else buffer
                count = self._receive(source, piece, pair)
                self._take_turn(count, pair)
                target.send_all(buffer[:count], Patience(_STUCK_S))
                self.passed_bytes += count
        except OSError:  # either end left, or fell silent
            pass
        finally:
            pair.ended = True
            source.close()
            target.close()

    def _receive(self, source: SocketStream, buffer: memoryview, pair: Pair) -> int:
        """At least one byte: how many. Raises: OSError, also when both directions were silent."""
        while True:
            left = pair.carried_at + _SILENCE_S - self._endpoint.clock.now()
            if left <= 0:
                raise TimeoutError("silent in both directions")
            try:
                count = source.recv_some(buffer, Patience(left))
            except TimeoutError:
                continue  # the other direction may have carried something meanwhile
            pair.carried_at = self._endpoint.clock.now()
            return count

    def _take_turn(self, count: int, pair: Pair) -> None:
        """Waits for room for so many bytes. Raises: ConnectionError if `pair` ended: then it takes
        nothing from the caps."""
        with self._turn:
            if pair.ended:
                raise ConnectionError("the other direction is over")
            self._endpoint.closing.wait(self._wait_s(count))

    def _wait_s(self, count: int) -> float:
        """Within the relay's own limit, and the box's, on the clock of the box's other streams: one
        that went on while the machine slept would fill their buckets with every look."""
        now, bandwidth = time.monotonic(), self._endpoint.bandwidth
        buckets = (self._bucket, bandwidth.upload, bandwidth.download)
        return max(bucket.take(count, now) for bucket in buckets if bucket is not None)
