"""What a way between two peers carries, where its other end sees us, and whether it can dial us
there: a few bursts on request.

Whoever asks sends bursts and fetches some, each twice the last, and takes the time until it has the
answer: so a rate is never too high, and a little too low where the round trip is long. Who serves
it gives at most a few MB and seconds, to one at a time, seldom, and within its own caps.
"""

import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.records.lease import Reached
from atom.swarm.stream.courtesy import Courtesy
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.rate_limit import TokenBucket

FIRST_BYTES, MOST_BYTES = 16 * 1024, 1024 * 1024
"""Of a burst."""
BUDGET_BYTES = 2 * MOST_BYTES
"""Of all bursts of one direction."""
ENOUGH_S = 0.25
"""What takes longer is not followed by a larger one."""
PATIENCE_S = 6.0
"""For all bursts."""
DIAL_BACK_S = 4.0
"""For dialling who asks."""
PEER_REST_S = 30.0
"""Before the same peer is served again."""
REST_S, AT_ONCE = 10.0, 3
"""So seldom is anybody served in the long run, and so many may come at once."""
_REMEMBERED = 256
_PART_BYTES = 16 * 1024
_SIZE, _PORT = struct.Struct(">I"), struct.Struct(">H")
MAX_ADDRESS_BYTES = 64


@dataclass(frozen=True)
class Gauged:
    """What was found out over one connection."""

    upload_bytes_per_s: float
    """At least."""
    download_bytes_per_s: float
    seen: str
    """Where the other end saw us: "host:port"; empty: it could not tell."""
    reached: Reached = Reached.UNKNOWN
    """Whether the other end could dial us on that host."""


DialBack = Callable[[Channel, int], Reached]
"""Whether this port can be dialled where the channel comes from. Takes up to `DIAL_BACK_S`."""


def gauge(
    channel: Channel, port: int | None = None, now: Callable[[], float] = time.monotonic
) -> Gauged:
    """Over a channel opened for it. `port`: where we listen, to be dialled by the other end.

    Raises: PeerRefused, OSError.
    """
    first = Patience.within(PATIENCE_S + DIAL_BACK_S)
    seen = channel.recv_frame(Kind.SEEN, MAX_ADDRESS_BYTES, first).decode("ascii", "replace")
    reached = Reached.UNKNOWN
    if port is not None:
        channel.send_frame(Kind.DIAL_BACK, _PORT.pack(port), patience=first)
        reached = Reached.of(channel.recv_frame(Kind.REACHED, 1, first))
    patience = Patience.within(PATIENCE_S)
    block = os.urandom(MOST_BYTES)  # nobody on the way can make it shorter

    def send(size_bytes: int) -> None:
        channel.send_frame(Kind.BURST, memoryview(block)[:size_bytes], patience=patience)
        channel.recv_frame(Kind.GOT, 0, patience)

    def fetch(size_bytes: int) -> None:
        channel.send_frame(Kind.FETCH, _SIZE.pack(size_bytes), patience=patience)
        _drain(channel, channel.recv_header(size_bytes, patience)[1], patience)

    return Gauged(_rate(send, now), _rate(fetch, now), seen, reached)


def _rate(burst: Callable[[int], None], now: Callable[[], float]) -> float:
    """Bytes per second of the best burst."""
    best, size_bytes = 0.0, FIRST_BYTES
    while size_bytes <= MOST_BYTES:
        began = now()
        burst(size_bytes)
        seconds = max(now() - began, 1e-6)
        best = max(best, size_bytes / seconds)
        if seconds > ENOUGH_S:
            break
        size_bytes *= 2
    return best


class GaugeServer:
    """Serves one at a time. Thread-safe."""

    def __init__(
        self,
        courtesy: Courtesy,
        dial_back: DialBack = lambda channel, port: Reached.UNKNOWN,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`courtesy`: what lets rings go first."""
        self._courtesy, self._dial_back, self._now = courtesy, dial_back, now
        self._lock = threading.Lock()
        self._bucket = TokenBucket(1 / REST_S, AT_ONCE)
        self._served_at: OrderedDict[str, float] = OrderedDict()
        self._serving: Channel | None = None

    def reserve(self, channel: Channel) -> None:
        """Raises: PeerRefused(BUSY), PeerRefused(TOO_OFTEN)."""
        with self._lock:
            now, peer_id = self._now(), channel.peer_id
            if self._serving is not None:
                raise PeerRefused(Reason.BUSY, "another peer gauges its way right now")
            if now < self._served_at.get(peer_id, -PEER_REST_S) + PEER_REST_S:
                detail = f"once in {PEER_REST_S:.0f} s for each peer"
                raise PeerRefused(Reason.TOO_OFTEN, detail)
            if not self._bucket.allow(now):
                raise PeerRefused(Reason.TOO_OFTEN, "others have just gauged their ways")
            self._serving, self._served_at[peer_id] = channel, now
            self._served_at.move_to_end(peer_id)
            if len(self._served_at) > _REMEMBERED:
                self._served_at.popitem(last=False)

    def leave(self, channel: Channel) -> None:
        """It is served no longer, if it was."""
        with self._lock:
            if self._serving is channel:
                self._serving = None

    def serve(self, channel: Channel) -> None:
        """Until the other end leaves, or has had enough. Raises: PeerRefused, OSError."""
        patience = Patience.within(PATIENCE_S)
        channel.send_frame(Kind.SEEN, channel.seen_at.encode(), patience=patience)
        got, given, dialled = 0, 0, False
        while got < BUDGET_BYTES and given < BUDGET_BYTES:
            kind, length = channel.recv_header(MOST_BYTES, patience)
            if kind == Kind.BURST:
                _drain(channel, length, patience)
                got += length
                channel.send_frame(Kind.GOT, patience=patience)
            elif kind == Kind.FETCH and length == _SIZE.size:
                (wanted,) = _SIZE.unpack(channel.recv_rest(length, patience))
                given += self._give(channel, min(wanted, MOST_BYTES), patience)
            elif kind == Kind.DIAL_BACK and length == _PORT.size and not dialled:
                (port,), dialled = _PORT.unpack(channel.recv_rest(length, patience)), True
                reached = self._dial_back(channel, port)
                patience = Patience.within(PATIENCE_S)
                channel.send_frame(Kind.REACHED, reached.to_wire(), patience=patience)
            else:
                raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} while a way is gauged")

    def _give(self, channel: Channel, size_bytes: int, patience: Patience) -> int:
        channel.send_header(Kind.BURST, size_bytes, patience)
        part = memoryview(os.urandom(_PART_BYTES))
        for start in range(0, size_bytes, _PART_BYTES):
            count = min(_PART_BYTES, size_bytes - start)
            while wait_s := self._courtesy.wait_s(count, time.monotonic()):
                patience.wait_s(time.monotonic())
                if channel.closed.wait(wait_s):
                    break
            channel.send_part(part[:count], patience)
        return size_bytes


def _drain(channel: Channel, length: int, patience: Patience) -> None:
    memory = memoryview(bytearray(min(length, _PART_BYTES)))
    while length > 0:
        count = min(length, _PART_BYTES)
        channel.recv_into(memory[:count], patience)
        length -= count
