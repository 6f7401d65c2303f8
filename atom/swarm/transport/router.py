"""Where an authenticated incoming connection goes: messages, a waiting ring, the blob store, a
line to be called over, a relayed peer, the answer to a probe."""

from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.transport.allowance import Allowance
from atom.swarm.transport.endpoint import Endpoint
from atom.swarm.transport.relay import Relay
from atom.swarm.transport.ring_pool import RingPool
from atom.swarm.transport.switchboard import Switchboard

OnMessage = Callable[[str, bytes, bytes], None]
"""peer id, incarnation, message bytes; called from many threads."""
OnBlobs = Callable[[Channel], None]
"""Serves one channel until it ends; the channel is closed afterwards."""
OnProbe = Callable[[Channel], None]
"""Answers one probe; the channel is closed afterwards."""


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
        limits = endpoint.limits
        self.rings = RingPool(limits.unclaimed_rings, limits.unclaimed_rings_per_peer)
        self._allowance = Allowance(endpoint.known)
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
            end = self._endpoint
            end.quarantine.offend(channel.peer_id, refused.reason, end.clock.now())
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
            raw = self._rest_of_frame(channel, length)
            now = self._endpoint.clock.now()
            self._endpoint.closing.wait(self._allowance.wait_s(channel.peer_id, length, now))
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
