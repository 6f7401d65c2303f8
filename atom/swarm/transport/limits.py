"""What the parts of one peer's transport share, how much strangers may take of it, and who is put
aside for what it did."""

import errno
import ipaddress
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.stream.bandwidth import Bandwidth, Rate, TokenBucket
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
        self._hosts: tuple[str, ...] = ()
        """Host groups where known peers were, the newest last."""

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

    def seen_at(self, group: str, peer_id: str) -> None:
        """Remember the host group if the peer, which has proven its id there, is known."""
        if group and peer_id in self and group not in self._hosts:
            self._hosts = (*self._hosts, group)[-MAX_CONNECTIONS:]

    def live_at(self, group: str) -> bool:
        """Return True if a known peer was seen at that host group."""
        return group in self._hosts

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self._of_head or peer_id in self._of_ring


class FairShare:
    """Rates at which peers may cost us something: one for each peer, and a pool for all strangers.

    A stranger is charged to its own small rate or to the pool, whichever lets it pass sooner. So a
    flood empties the pool and delays its sender, and another stranger's few bytes still pass at
    once. Known peers never wait for strangers. Pure arithmetic on a given time; the caller sleeps.
    Thread-safe.
    """

    def __init__(
        self, known: "KnownPeers", of_known: Rate, of_stranger: Rate, of_all_strangers: Rate
    ) -> None:
        """Create a share with full buckets.

        Args:
            known: Peers of the run, looked up at each call.
            of_known: Rate of each known peer.
            of_stranger: Rate of each stranger, even while the pool is empty.
            of_all_strangers: Rate of the pool.
        """
        self._known, self._of_known, self._of_stranger = known, of_known, of_stranger
        self._pool = TokenBucket(*of_all_strangers)
        self._lock = threading.Lock()
        self._own: dict[tuple[str, bool], TokenBucket] = {}
        """Bucket by peer id and by whether the peer was known; the last used one is the last."""

    def wait_s(self, peer_id: str, cost: float, now: float) -> float:
        """Charge `cost` to this peer.

        Args:
            peer_id: Peer that proved this id.
            cost: In the unit of the rates; it may exceed a burst.
            now: Seconds of one monotonic clock.

        Returns:
            Seconds to wait before the peer is served.
        """
        is_known = peer_id in self._known
        key, rate = (peer_id, is_known), self._of_known if is_known else self._of_stranger
        with self._lock:
            own = self._own.pop(key) if key in self._own else TokenBucket(*rate)
            self._own[key] = own
            if len(self._own) > MOST_REMEMBERED:
                del self._own[next(iter(self._own))]
            sources = [own] if is_known else [own, self._pool]
            return min(sources, key=lambda source: source.owes(cost, now)).take(cost, now)


def host_group(ip: str) -> str:
    """Return the part of an address that one customer usually controls.

    Args:
        ip: IPv4 or IPv6 address.

    Returns:
        The IPv4 address (also of an IPv4-mapped IPv6 address), or the IPv6 /64 network; text that
        is no address is returned as it is.
    """
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ip
    if isinstance(address, ipaddress.IPv6Address):
        if not address.ipv4_mapped:
            return f"{ipaddress.IPv6Address(int(address) >> 64 << 64)}/64"
        address = address.ipv4_mapped
    return str(address)


class ConnectionLimiter:
    """Places for incoming connections: by host group until a peer id is proven, then by peer.

    Strangers have half of the places. If these are taken, a stranger from a host group with few
    connections takes the place of the oldest connection of the group that has the most: one
    machine with many connections keeps no other machine out. Thread-safe.
    """

    def __init__(self, known: KnownPeers) -> None:
        self._known = known
        self._lock = threading.RLock()  # closing a connection calls `leave`
        self._unproven: dict[Channel, str] = {}
        """Host group of each connection that has proven no peer id, oldest first."""
        self._proven: dict[Channel, tuple[str, str]] = {}
        """Host group and peer id of each other connection, oldest first."""

    def enter(self, channel: Channel, host: str) -> bool:
        """Return True, and count the connection, if it may start its handshake."""
        group, is_home = host_group(host), self._known.live_at
        with self._lock:
            of_group = [*self._unproven.values()].count(group)
            strangers = {each: g for each, g in self._unproven.items() if not is_home(g)}
            full = len(self._unproven) >= MAX_HANDSHAKES
            full |= not is_home(group) and len(strangers) >= MAX_HANDSHAKES // 2
            few = of_group < MAX_HANDSHAKES_PER_HOST
            if not few or (full and not _made_room(strangers, of_group)):
                return False
            self._unproven[channel] = group
            return True

    def identify(self, channel: Channel, peer_id: str) -> bool:
        """Move a connection to the places of `peer_id`; False if there is no room for it."""
        with self._lock:
            group = self._unproven.get(channel)
            holders = [peer for _, peer in self._proven.values()]
            if group is None or holders.count(peer_id) >= MAX_CONNECTIONS_PER_PEER:
                return False
            if not self._known.has_room(peer_id, holders, MAX_CONNECTIONS):
                strangers = {c: g for c, (g, p) in self._proven.items() if p not in self._known}
                if not _made_room(strangers, [*strangers.values()].count(group)):
                    return False
            del self._unproven[channel]
            self._proven[channel] = group, peer_id
            self._known.seen_at(group, peer_id)
            return True

    def leave(self, channel: Channel) -> None:
        """Free the place of a connection that ended, if it has one."""
        with self._lock:
            self._unproven.pop(channel, None)
            self._proven.pop(channel, None)


def _made_room(groups: Mapping[Channel, str], fewer: int) -> bool:
    """Close the oldest connection of the largest host group, if that has at least two more than
    `fewer`; return True if so."""
    largest, count = Counter(groups.values()).most_common(1)[0] if groups else ("", 0)
    if count < fewer + 2:
        return False
    next(channel for channel, group in groups.items() if group == largest).close()
    return True


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
