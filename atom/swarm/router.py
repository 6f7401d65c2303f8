"""Where an authenticated incoming connection goes: messages, a waiting ring, the blob shelf, a line
to be called over, a relayed peer, the answer to a probe."""

import threading
import time
from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.endpoint import Endpoint
from atom.swarm.frames import Channel, Kind, Patience, Purpose
from atom.swarm.message_codec import MAX_MESSAGE_BYTES
from atom.swarm.relay import Relay
from atom.swarm.switchboard import Switchboard

OnMessage = Callable[[str, bytes, bytes], None]
"""peer id, incarnation, message bytes; called from many threads."""
OnBlobs = Callable[[Channel], None]
"""Serves one channel until it ends; the channel is closed afterwards."""
OnProbe = Callable[[Channel], None]
"""Answers one probe; the channel is closed afterwards."""


class RingPool:
    """Ring channels that arrived before this peer asked for them: few, and not for long."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, bytes], Channel] = {}
        self._closed = False

    def offer(self, channel: Channel, seconds: float) -> bool:
        """Waits until somebody claims `channel`; False if nobody did in time or room is out.

        A newer channel of the same peer and tag replaces the older one.
        """
        key = (channel.peer_id, channel.tag)
        deadline = time.monotonic() + seconds
        with self._changed:
            if self._closed or (len(self._waiting) >= self._limit and key not in self._waiting):
                return False
            self._waiting[key] = channel
            self._changed.notify_all()
            while self._waiting.get(key) is channel and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0 or channel.closed.is_set():
                    break
                self._changed.wait(left)
            return self._settled(key, channel)

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

    def _settled(self, key: tuple[str, bytes], channel: Channel) -> bool:
        """Takes the channel back out unless it was claimed or replaced."""
        if self._waiting.get(key) is channel:
            del self._waiting[key]
        return channel.claimed


class Router:
    """Runs an incoming connection in the thread that accepted it."""

    def __init__(
        self,
        endpoint: Endpoint,
        switchboard: Switchboard | None = None,
        relay: Relay | None = None,
        on_probe: OnProbe | None = None,
    ) -> None:
        """What is not given is not served."""
        self.on_message: OnMessage | None = None
        self.on_blobs: OnBlobs | None = None
        self._switchboard = switchboard
        self._relay = relay
        self._on_probe = on_probe
        self.rings = RingPool(endpoint.limits.unclaimed_rings)
        self._endpoint = endpoint

    def screen(self, channel: Channel) -> None:
        """Raises: PeerRefused(NOT_FOUND) for a purpose that nobody here serves."""
        if channel.purpose is Purpose.BLOBS and self.on_blobs is None:
            raise PeerRefused(Reason.NOT_FOUND, "serves no blobs")
        reaching = (Purpose.LINE, Purpose.RELAY, Purpose.PROBE)
        if channel.purpose in reaching and self._switchboard is None:
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
        """Serves the channel to its end; a ring channel passes to whoever claims it."""
        if channel.purpose is Purpose.RING:
            if not self.rings.offer(channel, self._endpoint.limits.unclaimed_ring_s):
                self._endpoint.events.emit("ring-unclaimed", peer_id=channel.peer_id)
                channel.close()
            return
        try:
            self._serve(channel)
        except PeerRefused as refused:
            self._endpoint.events.emit(
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
            case Purpose.LINE if self._switchboard is not None:
                self._switchboard.attend(channel)
            case Purpose.RELAY if self._relay is not None:
                self._relay.splice(channel)
            case Purpose.PROBE if self._on_probe is not None:
                self._on_probe(channel)

    def _read_messages(self, channel: Channel) -> None:
        idle = Patience(3 * self._endpoint.limits.lane_idle_s)
        while not self._endpoint.closing.is_set():
            kind, length = channel.recv_header(MAX_MESSAGE_BYTES, idle)
            if kind != Kind.MESSAGE:
                raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} among messages")
            raw = channel.recv_rest(length, Patience.within(self._endpoint.limits.frame_s))
            if self.on_message is not None:
                self.on_message(channel.peer_id, channel.incarnation, raw)
