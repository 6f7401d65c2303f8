"""What the parts of one peer's transport share, how much strangers may take of it, and who is put
aside for what it did."""

import errno
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.stream.bandwidth import Bandwidth, TokenBucket
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local

HANDSHAKE_S = 5.0
"""For a connection, or a call, and its handshake."""
MAX_CONNECTIONS = 256
"""From peers that have proved who they are. Of connections, lines and destinations, strangers have
half; all of these bounds suit swarms up to a few hundred."""
MAX_CONNECTIONS_PER_PEER = 12
"""A ring has up to four to a neighbour, and two attempts may meet; the rest is for messages and
blobs."""
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_HOST = 64, 16
"""Connections that have not yet proved who they are."""
UNCLAIMED_RING_S = 10.0
MAX_DESTINATIONS = 512
"""Of messages under way, each with a thread."""
MAX_QUEUED_MESSAGES, MAX_QUEUED_BYTES = 256, 8 * 1024 * 1024
"""Per destination; more are dropped."""
LANE_IDLE_S = 30.0
"""An outgoing message connection closes after this much silence, an incoming one after three times
as much."""
FRAME_S = 30.0
"""From a message frame's first byte to its last."""
PLACES_FOR_LINES = 96
"""Of peers that cannot be dialled and keep a connection open to us, to be called over it."""
TOLD_PER_S, TOLD_AT_ONCE = 10.0, 50.0
"""Events of each kind that strangers bring about: a flood of them must not fill the disk, nor
hide events of another kind."""
FIRST_HOLD_S = 5.0
LONGEST_HOLD_S = 600.0
FORGOTTEN_S = 600.0
"""After the last time aside has ended: then the next failure is the first again."""
MOST_REMEMBERED = 4096
OFFENCES = frozenset(
    {
        Reason.TIMEOUT,
        Reason.STATE_MISMATCH,
        Reason.TOO_LARGE,
        Reason.MALFORMED,
        Reason.BAD_SIGNATURE,
        Reason.BAD_CERTIFICATE,
        Reason.BAD_WEIGHT,
        Reason.HASH_MISMATCH,
    }
)
"""What a peer is quarantined for: nobody asks it to take part in a round. Never for long: a damaged
disk looks like a lie. A quarantined peer may still connect, within the same limits as all others: a
quorum may need its vote."""


class KnownPeers:
    """Peer ids that the run knows. All others are strangers: identities are free, so strangers
    have half of the places of anything. Thread-safe: what is read is replaced as a whole."""

    def __init__(self) -> None:
        self._of_head: frozenset[str] = frozenset()
        self._of_ring: frozenset[str] = frozenset()

    def at_head(self, peer_ids: Iterable[str]) -> None:
        """Replaces the peers that our head knows."""
        self._of_head = frozenset(peer_ids)

    def in_ring(self, peer_ids: Iterable[str]) -> None:
        """Replaces the members of the latest ring: a newcomer is known to no head yet."""
        self._of_ring = frozenset(peer_ids)

    def has_room(self, peer_id: str, holders: Collection[str], places: int) -> bool:
        """Whether `peer_id` may take one of `places`, beside those who hold one."""
        if len(holders) >= places:
            return False
        return peer_id in self or sum(other not in self for other in holders) < places // 2

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self._of_head or peer_id in self._of_ring


class ConnectionLimiter:
    """Counts incoming connections: per host until they have proved a peer id, then per peer.
    Thread-safe."""

    def __init__(self, known: KnownPeers) -> None:
        self._known = known
        self._lock = threading.Lock()
        self._hosts: Counter[str] = Counter()
        self._homes = deque[str](maxlen=MAX_CONNECTIONS)
        """Hosts where known peers were."""
        self._peers: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Whether a connection from `host` may start its handshake; counts it if so. Hosts that no
        known peer has come from have half of the places."""
        with self._lock:
            held = list(self._hosts.elements())
            full = len(held) >= MAX_HANDSHAKES
            if host not in self._homes:
                strangers = sum(each not in self._homes for each in held)
                full |= strangers >= MAX_HANDSHAKES // 2
            if full or self._hosts[host] >= MAX_HANDSHAKES_PER_HOST:
                return False
            self._hosts[host] += 1
            return True

    def identify(self, host: str, peer_id: str) -> bool:
        """Moves a connection from `host` to `peer_id`; False: nothing moved, there is no room."""
        peers = self._peers
        with self._lock:
            if peers[peer_id] >= MAX_CONNECTIONS_PER_PEER:
                return False
            if not self._known.has_room(peer_id, [*peers.elements()], MAX_CONNECTIONS):
                return False
            self._hosts -= Counter([host])
            peers[peer_id] += 1
            if peer_id in self._known and host not in self._homes:
                self._homes.append(host)
            return True

    def leave(self, host: str, peer_id: str) -> None:
        """A connection ended; `peer_id` is empty if it never proved one."""
        with self._lock:
            if peer_id:
                self._peers -= Counter([peer_id])
            else:
                self._hosts -= Counter([host])


class ThreadGroup:
    """Starts threads and remembers the living. A thread's exception is an event, not a crash."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._living: set[threading.Thread] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work` in a thread of its own. Raises: OSError when the system has none to give."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        with self._lock:
            self._living.add(thread)
        try:
            thread.start()
        except RuntimeError as problem:
            with self._lock:
                self._living.discard(thread)
            raise OSError(errno.EAGAIN, f"no thread for {name}: {problem}") from problem

    def join(self, timeout_s: float) -> bool:
        """Waits for all but the calling thread; whether they ended in time."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            waiting = self._living - {threading.current_thread()}
        for thread in waiting:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in waiting)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - supervisor: one connection must not take all along
            self._events.emit("thread-failed", traceback=traceback.format_exc(limit=8))
        finally:
            with self._lock:
                self._living.discard(threading.current_thread())


class Backoff:
    """Names that are set aside for a time which doubles with each failure in a row. In memory only
    and bounded. Thread-safe; times are seconds of one monotonic clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[int, float]] = {}
        """Name → how often in a row it failed, and until when it is set aside."""

    def fail(self, name: str, now: float) -> float:
        """Returns for how many seconds it is set aside."""
        with self._lock:
            times, until = self._failed.pop(name, (0, now))
            times = times + 1 if now < until + FORGOTTEN_S else 1
            seconds = min(self._first_s * 2.0 ** min(times - 1, 30), self._longest_s)
            self._failed[name] = times, now + seconds
            while len(self._failed) > MOST_REMEMBERED:
                del self._failed[next(iter(self._failed))]
        return seconds

    def forgive(self, name: str) -> None:
        with self._lock:
            self._failed.pop(name, None)

    def failures(self, name: str) -> int:
        return self._failed.get(name, (0, 0.0))[0]

    def held(self, now: float) -> frozenset[str]:
        """All that are set aside."""
        with self._lock:
            return frozenset([name for name, (_, until) in self._failed.items() if now < until])


def offend(offenders: Backoff, peer_id: str, reason: Reason, now: float) -> float:
    """Notes what may be an offence; returns for how many seconds it puts the peer aside."""
    return offenders.fail(peer_id, now) if reason in OFFENCES else 0.0


class Unreachable(ConnectionError):
    """No known way led to the peer."""


@dataclass(frozen=True)
class Handlers:
    """Who is told what comes from others: in the transport's threads, several at once. The first
    two must not block for long."""

    on_message: Callable[[str, bytes, bytes], None] = lambda peer_id, incarnation, raw: None
    on_unreachable: Callable[[str], None] = lambda peer_id: None
    """A message to this peer id could not be delivered."""
    on_blobs: Callable[[Channel], None] | None = None
    """Serves a channel until it ends. None: such connections are refused."""


@dataclass(frozen=True)
class Endpoint:
    """One peer's identity, log, clock, threads and channels."""

    local: Local
    events: EventSink
    threads: ThreadGroup
    clock: Clock = field(default_factory=BootClock)
    closing: threading.Event = field(default_factory=threading.Event)
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    handlers: Handlers = Handlers()
    offenders: Backoff = field(default_factory=partial(Backoff, FIRST_HOLD_S, LONGEST_HOLD_S))
    known: KnownPeers = field(default_factory=KnownPeers)
    told: dict[str, TokenBucket] = field(default_factory=dict)
    channels: set[Channel] = field(default_factory=set)
    """Open ones. Whatever is done with it is one call, and needs no lock."""

    def keep(self, channel: Channel) -> None:
        """It ends with the transport, at the latest."""
        self.channels.add(channel)
        if self.closing.is_set():
            channel.close()

    def tell(self, event: str, refused: PeerRefused, /, **fields: object) -> None:
        """An event that strangers bring about as often as they like: beyond a rate it is left
        out."""
        bucket = self.told.setdefault(event, TokenBucket(TOLD_PER_S, TOLD_AT_ONCE))
        if bucket.allow(self.clock.now()):
            reason, detail = refused.reason.value, refused.detail[:200]
            self.events.emit(event, reason=reason, detail=detail, **fields)
