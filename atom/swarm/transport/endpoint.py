"""What the parts of one peer's transport share, and how much strangers may take of it."""

import threading
from dataclasses import dataclass, field

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.rate_limit import TokenBucket
from atom.swarm.stream.throttle import Bandwidth
from atom.swarm.transport.crew import Crew
from atom.swarm.transport.known_peers import KnownPeers
from atom.swarm.transport.quarantine import Quarantine


@dataclass(frozen=True)
class TransportLimits:
    """Bounds on time, connections and memory. The defaults suit swarms up to a few hundred."""

    handshake_s: float = 5.0
    connect_s: float = 3.0
    connections: int = 256
    """From peers that have proved who they are."""
    connections_of_strangers: int = 128
    """Of those, of all peers together that the run does not know."""
    connections_per_peer: int = 12
    """A ring has up to four to a neighbour, and two attempts may meet; the rest is for messages and
    blobs."""
    handshakes: int = 64
    """Connections that have not yet proved who they are."""
    handshakes_per_host: int = 16
    handshakes_distrusted: int = 8
    unclaimed_rings: int = 64
    unclaimed_rings_per_peer: int = 8
    """Two attempts' worth of connections."""
    unclaimed_ring_s: float = 10.0
    destinations: int = 1024
    """Of messages under way, each with a thread: a crowd of leases is more than the system has.
    Whom the run knows finds a place beyond them."""
    introductions: int = 32
    """Of those, to peers that the run does not know and that are being reached for the first time:
    addresses are free, and each that leads nowhere holds a thread for seconds. The others wait."""
    queued_messages: int = 256
    """Per destination; more are dropped."""
    queued_bytes: int = 8 * 1024 * 1024
    lane_idle_s: float = 30.0
    """An outgoing message connection closes after this much silence, an incoming one after
    three times as much."""
    frame_s: float = 30.0
    """From a message frame's first byte to its last."""
    lines: int = 96
    """Peers that cannot be dialled and keep a connection open to us, to be called over it."""
    lines_of_strangers: int = 48
    """Of those."""
    relay_bytes_per_s: float = 2_500_000.0
    """For connections between two such peers that we pass on, both directions of all of them
    together; 0: none."""
    relay_pairs: int = 16
    """Connections that are passed on at a time."""
    relay_pairs_of_strangers: int = 8
    """Of those, asked for by peers that the run does not know."""


@dataclass(frozen=True)
class Endpoint:
    """One peer's identity, limits, log, clock and threads."""

    local: Local
    limits: TransportLimits
    events: EventSink
    clock: Clock
    crew: Crew
    closing: threading.Event
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    quarantine: Quarantine = field(default_factory=Quarantine)
    known: KnownPeers = field(default_factory=KnownPeers)


class RefusalLog:
    """Writes refusals as events, at most ten a second, so that a flood cannot fill the disk."""

    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._bucket = TokenBucket(10.0, 50.0)
        self._unwritten = 0
        self._lock = threading.Lock()

    def write(self, refused: PeerRefused, host: str, peer_id: str) -> None:
        with self._lock:
            if not self._bucket.allow(self._clock.now()):
                self._unwritten += 1
                return
            unwritten, self._unwritten = self._unwritten, 0
        self._events.emit(
            "connection-refused",
            reason=refused.reason.value,
            detail=refused.detail[:200],
            host=host,
            peer_id=peer_id,
            unwritten=unwritten,
        )
