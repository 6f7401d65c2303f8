"""Transports of tests on loopback that find each other."""

from collections.abc import Callable

from atom.base.events import EventSink
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList


class LocalNetwork:
    """Network in one process: all transports that were started on it."""

    def __init__(self) -> None:
        self.present: list[Transport] = []

    def add(self, serve: Callable[[Channel], None] | None = None) -> Transport:
        """Start a transport with a new identity."""
        incarnation = bytes([len(self.present)]) * 16
        made = LocalTransport(self, Identity.create(), incarnation, EventList(), serve)
        made.start()
        return made

    def close(self) -> None:
        for each in self.present:
            each.close()


class LocalTransport(Transport):
    """All on one network know where the others listen; they share one run."""

    def __init__(
        self,
        network: LocalNetwork,
        identity: Identity,
        incarnation: bytes,
        events: EventSink,
        serve: Callable[[Channel], None] | None = None,
    ) -> None:
        """`serve`: blobs."""
        local, handlers = Local(identity, bytes(32), incarnation), Handlers(on_blobs=serve)
        super().__init__(local, ("127.0.0.1", 0), events, handlers=handlers)
        self._network = network

    def start(self) -> None:
        super().start()
        for other in self._network.present:
            self.set_addresses(other.peer_id, ["{}:{}".format(*other.address)])
            other.set_addresses(self.peer_id, ["{}:{}".format(*self.address)])
        self._network.present.append(self)
