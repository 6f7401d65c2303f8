"""Where an authenticated incoming connection goes: messages, a waiting ring, the blob store, a
line to be called over, a relayed peer, the answer to a probe."""

import threading
from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.stream.bandwidth import TokenBucket
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.transport.limits import Endpoint
from atom.swarm.transport.relay import Relay
from atom.swarm.transport.reverse_connections import ReverseConnections

MESSAGES_BYTES_PER_S, MESSAGES_BURST_BYTES = 256 * 1024.0, 2 * 1024 * 1024.0
"""Read of a connection's messages, or of those of all strangers together: to read a message takes
longer than to send it."""
_BYTES_PER_MESSAGE = 256
"""That each counts beside its own."""

OnMessage = Callable[[str, bytes, bytes], None]
"""peer id, incarnation, message bytes; called from many threads."""
OnBlobs = Callable[[Channel], None]
"""Serves one channel until it ends; the channel is closed afterwards."""
OnProbe = Callable[[Channel], None]
"""Answers one probe; the channel is closed afterwards."""


class RingPool:
    """Ring channels that came before this peer asked for them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, bytes], Channel] = {}
        """By peer id and tag."""
        self._closed = False

    def offer(self, channel: Channel, seconds: float) -> bool:
        """Waits until the channel is claimed; False if nobody did in time.

        A newer channel of the same peer and tag replaces the older one.
        """
        key = (channel.peer_id, channel.tag)
        with self._changed:
            self._waiting[key] = channel
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: (
                    self._waiting.get(key) is not channel or self._closed or channel.closed.is_set()
                ),
                seconds,
            )
            if self._waiting.get(key) is channel:
                del self._waiting[key]
            return channel.claimed

    def claim(self, peer_id: str, tag: bytes, seconds: float) -> Channel:
        """The channel of that peer and tag, waited for. Raises: TimeoutError, ConnectionError."""
        key = (peer_id, tag)
        with self._changed:
            self._changed.wait_for(lambda: key in self._waiting or self._closed, seconds)
            if self._closed:
                raise ConnectionError("closed here")
            if key not in self._waiting:
                raise TimeoutError(f"no ring connection from {peer_id}")
            channel = self._waiting.pop(key)
            channel.claimed = True
            self._changed.notify_all()
            return channel

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Router:
    """Runs an incoming connection in the thread that accepted it."""

    def __init__(
        self,
        endpoint: Endpoint,
        reverse: ReverseConnections | None = None,
        relay: Relay | None = None,
        on_probe: OnProbe | None = None,
    ) -> None:
        """What is not given is not served."""
        self.on_message: OnMessage | None = None
        self.on_blobs: OnBlobs | None = None
        self.rings = RingPool()
        self._endpoint = endpoint
        self._reverse = reverse
        self._relay = relay
        self._on_probe = on_probe
        self._of_strangers = TokenBucket(MESSAGES_BYTES_PER_S, MESSAGES_BURST_BYTES)

    def screen(self, channel: Channel) -> None:
        """Raises: PeerRefused(NOT_FOUND) for a purpose that nobody here serves."""
        if channel.purpose is Purpose.BLOBS and self.on_blobs is None:
            raise PeerRefused(Reason.NOT_FOUND, "serves no blobs")
        reaching = (Purpose.LINE, Purpose.RELAY, Purpose.PROBE)
        if channel.purpose in reaching and self._reverse is None:
            raise PeerRefused(Reason.NOT_FOUND, "takes no lines")

    def reserve(self, channel: Channel) -> None:
        """The last thing before the other end is told that it is in. Raises: PeerRefused."""
        if channel.purpose is Purpose.RELAY and self._relay is not None:
            self._relay.reserve(channel)

    def ended(self, channel: Channel) -> None:
        """A connection that was, or might have been, routed is closed."""
        if self._relay is not None:
            self._relay.drop(channel)

    def route(self, channel: Channel) -> None:
        """Serves the channel to its end; a ring channel passes to its claimant."""
        end = self._endpoint
        if channel.purpose is Purpose.RING:
            if not self.rings.offer(channel, end.limits.unclaimed_ring_s):
                end.events.emit("ring-unclaimed", peer_id=channel.peer_id)
                channel.close()
            return
        try:
            self._serve(channel)
        except PeerRefused as refused:
            end.quarantine.offend(channel.peer_id, refused.reason, end.clock.now())
            end.events.emit(
                "connection-dropped",
                reason=refused.reason.value,
                detail=refused.detail[:200],
                peer_id=channel.peer_id,
            )
        except OSError:  # the other end left, or we are closing: nothing to tell
            pass
        finally:
            channel.close()

    def _serve(self, channel: Channel) -> None:
        """To the channel's end. Raises: PeerRefused, OSError."""
        match channel.purpose:
            case Purpose.MESSAGES:
                self._read_messages(channel)
            case Purpose.BLOBS if self.on_blobs is not None:
                self.on_blobs(channel)
            case Purpose.LINE if self._reverse is not None:
                self._reverse.serve_line(channel)
            case Purpose.RELAY if self._relay is not None:
                self._relay.splice(channel)
            case Purpose.PROBE if self._on_probe is not None:
                self._on_probe(channel)

    def _read_messages(self, channel: Channel) -> None:
        end = self._endpoint
        idle = Patience(3 * end.limits.lane_idle_s)
        own = TokenBucket(MESSAGES_BYTES_PER_S, MESSAGES_BURST_BYTES)
        while not end.closing.is_set():
            kind, length = channel.recv_header(MAX_MESSAGE_BYTES, idle)
            if kind != Kind.MESSAGE:
                raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} among messages")
            raw = self._rest_of_frame(channel, length)
            bucket = own if channel.peer_id in end.known else self._of_strangers
            end.closing.wait(bucket.take(length + _BYTES_PER_MESSAGE, end.clock.now()))
            if self.on_message is not None:
                self.on_message(channel.peer_id, channel.incarnation, raw)

    def _rest_of_frame(self, channel: Channel, length: int) -> bytes:
        """Raises: PeerRefused(TIMEOUT) for a frame that was begun and does not end; OSError."""
        within_s = self._endpoint.limits.frame_s
        try:
            return channel.recv_rest(length, Patience.within(within_s))
        except TimeoutError as late:
            detail = f"a frame of {length} bytes takes longer than {within_s:g} s"
            raise PeerRefused(Reason.TIMEOUT, detail) from late
