"""The transport's twin in memory: the same lanes, frames and routing, without sockets or keys."""

import math
import threading

from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import OPEN, AllowList
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import TransportLimits, Unreachable
from atom.swarm.transport.transport import Transport
from tests.swarm.memory_stream import MemoryStream


class LocalNetwork:
    """Who is there and who can reach whom. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[str, LocalTransport] = {}
        self._cut: set[frozenset[str]] = set()
        self._channels: dict[frozenset[str], list[Channel]] = {}

    def cut(self, one: str, other: str) -> None:
        """Separates two peers: their channels end, new ones fail without being refused."""
        pair = frozenset((one, other))
        with self._lock:
            self._cut.add(pair)
            ended = self._channels.pop(pair, [])
        for channel in ended:
            channel.close()

    def heal(self, one: str, other: str) -> None:
        """Undoes `cut`."""
        with self._lock:
            self._cut.discard(frozenset((one, other)))

    def join(self, transport: "LocalTransport") -> None:
        with self._lock:
            self._present[transport.peer_id] = transport

    def leave(self, transport: "LocalTransport") -> None:
        with self._lock:
            if self._present.get(transport.peer_id) is transport:
                del self._present[transport.peer_id]

    def reach(self, caller: str, peer_id: str) -> "LocalTransport":
        """Raises: Unreachable (`refused` if nobody of that name is there)."""
        with self._lock:
            if frozenset((caller, peer_id)) in self._cut:
                raise Unreachable(f"{peer_id}: cut off")
            if peer_id not in self._present:
                raise Unreachable(f"{peer_id}: nobody there", refused=True)
            return self._present[peer_id]

    def remember(self, channel: Channel, caller: str, peer_id: str) -> None:
        with self._lock:
            pair = self._channels.setdefault(frozenset((caller, peer_id)), [])
            pair[:] = [old for old in pair if not old.closed.is_set()] + [channel]


class LocalTransport(Transport):
    """A `Transport` on a `LocalNetwork`; peers of one network share one run (`allowed`: as each of
    them sees it)."""

    address = ("local", 1)

    def __init__(
        self,
        network: LocalNetwork,
        identity: Identity,
        incarnation: bytes,
        events: EventSink,
        limits: TransportLimits | None = None,
        allowed: AllowList = OPEN,
    ) -> None:
        local = Local(identity, bytes(32), incarnation, allowed=allowed)
        super().__init__(local, None, events, limits=limits)
        self.network = network

    def start(self) -> None:
        self.network.join(self)

    def close(self) -> None:
        self._endpoint.closing.set()
        self.network.leave(self)
        super().close()

    def connect(
        self,
        peer_id: str,
        purpose: Purpose,
        tag: bytes = b"",
        timeout_s: float = math.inf,
        stop: threading.Event | None = None,
    ) -> Channel:
        if self._endpoint.closing.is_set():
            raise ConnectionError("closed here")
        self._endpoint.local.allowed.check(peer_id)
        other = self.network.reach(self.peer_id, peer_id)
        here, there = MemoryStream.pair()
        channel = self._adopt(here, other, purpose, tag)
        self.network.remember(channel, self.peer_id, peer_id)
        other.receive(self, there, purpose, tag)
        return channel

    def receive(
        self, caller: "LocalTransport", stream: MemoryStream, purpose: Purpose, tag: bytes
    ) -> None:
        """Another transport of the network connects. Raises: PeerRefused(NOT_FOUND,
        NOT_ON_THE_LIST)."""
        self._endpoint.local.allowed.check(caller.peer_id)
        channel = self._adopt(stream, caller, purpose, tag)
        try:
            self._router.screen(channel)
        except PeerRefused:
            channel.close()
            raise
        self._endpoint.threads.start("atom-inbound", lambda: self._router.route(channel))

    def _adopt(
        self, stream: MemoryStream, other: "LocalTransport", purpose: Purpose, tag: bytes
    ) -> Channel:
        channel = Channel(stream, self._endpoint.channels.discard)
        channel.peer_id = other.peer_id
        channel.incarnation = other._endpoint.local.incarnation
        channel.purpose, channel.tag = purpose, tag
        self._endpoint.keep(channel)
        return channel
