"""State that the parts of one peer's transport share: bounds for strangers, and peers excluded for
offences."""

import errno
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused, Reason
from atom.base.events import EventSink
from atom.swarm.addresses import host_group
from atom.swarm.dial_rules import AddressClass, class_of
from atom.swarm.stream.bandwidth import Bandwidth, Rate, TokenBucket
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local

HANDSHAKE_S = 5.0
"""Time for a connection, or a call, and its whole handshake."""
MAX_CONNECTIONS = 256
"""Connections that have proven a peer id. Strangers have half of the connections, lines and
destinations; all of these bounds suit swarms of up to a few hundred peers."""
MAX_CONNECTIONS_PER_PEER = 12
"""A ring has up to four to a neighbour, and two attempts may meet; the rest is for messages and
blobs."""
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_HOST = 64, 16
"""Connections that have not yet proven a peer id: in all, and from one host group. In an exchange
of 64 dialable members each owner is dialled by 63 others at once."""
UNCLAIMED_RING_S = 10.0
MAX_DESTINATIONS = 512
"""Destinations that messages are under way to, each with a thread."""
MAX_QUEUED_MESSAGES, MAX_QUEUED_BYTES = 256, 8 * 1024 * 1024
"""Per destination; more are dropped."""
LANE_IDLE_S = 30.0
"""An outgoing message connection closes after this much silence, an incoming one after three times
as much."""
FRAME_S = 30.0
"""Time from a message frame's first byte to its last."""
PLACES_FOR_LINES = 96
"""Peers that cannot be dialled and keep a connection open to us, over which they are called."""
EVENTS_PER_S, EVENTS_AT_ONCE = 10.0, 50.0
"""Rate of each kind of event that strangers cause: a flood must neither fill the disk nor hide
events of another kind."""
FIRST_HOLD_S = 5.0
LONGEST_HOLD_S = 600.0
FORGOTTEN_S = 600.0
"""Time after the end of the last exclusion; a later failure counts as the first one."""
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
"""Reasons to quarantine a peer: this peer asks it to take part in no round. Never for long, because
a damaged disk looks like a lie. A quarantined peer may still connect, within the same limits as all
others: a quorum may need its vote."""


class KnownPeers:
    """Peer ids that the run knows. Thread-safe: each field is replaced as a whole.

    All other peers are strangers, and have half of all places, because identities are free.
    """

    def __init__(self) -> None:
        self.voters: frozenset[str] = frozenset()
        self._of_head: frozenset[str] = frozenset()
        self._of_ring: frozenset[str] = frozenset()
        self._hosts: tuple[str, ...] = ()
        """Host groups where known peers were, the newest last."""

    def at_head(self, peer_ids: Iterable[str], voters: Iterable[str] = ()) -> None:
        """Replace the voters of our head, and all peers that it knows (`Head.known`)."""
        self._of_head, self.voters = frozenset(peer_ids), frozenset(voters)

    def in_ring(self, peer_ids: Iterable[str]) -> None:
        """Replace the members of the latest exchange; no head knows a newcomer among them yet."""
        self._of_ring = frozenset(peer_ids)

    def has_room(self, peer_id: str, holders: Collection[str], places: int) -> bool:
        """Return True if `peer_id` may take one of `places`, of which `holders` have one each.

        A place is kept for each voter that has none, because no round is decided without voters.
        """
        if len(holders) + len(self.voters.difference(holders, [peer_id])) >= places:
            return False
        return peer_id in self or sum(other not in self for other in holders) < places // 2

    def makes_room(self, channel: Channel, others: Collection[Channel], places: int) -> bool:
        """Return True if `channel` may take one of `places`, of which `others` have one each.

        If strangers have their half, a stranger's channel may be closed for it: the host group that
        has the most loses its oldest one (`made_room`).
        """
        if self.has_room(channel.peer_id, [other.peer_id for other in others], places):
            return True
        groups = {each: host_group(each.remote[0]) for each in others if each.peer_id not in self}
        return make_room(groups, [*groups.values()].count(host_group(channel.remote[0])))

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
        with self._lock:
            sources = self._sources(peer_id)
            return min(sources, key=lambda source: source.owes(cost, now)).take(cost, now)

    def allow(self, peer_id: str, now: float) -> bool:
        """Charge one unit and return True; if the peer would have to wait, charge nothing."""
        with self._lock:
            return any(source.allow(now) for source in self._sources(peer_id))

    def _sources(self, peer_id: str) -> list[TokenBucket]:
        is_known = peer_id in self._known
        key, rate = (peer_id, is_known), self._of_known if is_known else self._of_stranger
        own = self._own.pop(key) if key in self._own else TokenBucket(*rate)
        self._own[key] = own
        if len(self._own) > MOST_REMEMBERED:
            del self._own[next(iter(self._own))]
        return [own] if is_known else [own, self._pool]


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
        self._proven: dict[Channel, str] = {}
        """Host group of each other connection, oldest first."""

    def enter(self, channel: Channel, host: str) -> bool:
        """Return True, and count the connection, if it may start its handshake."""
        group, is_home = host_group(host), self._known.live_at
        with self._lock:
            of_group = [*self._unproven.values()].count(group)
            strangers = {each: g for each, g in self._unproven.items() if not is_home(g)}
            full = len(self._unproven) >= MAX_HANDSHAKES
            full |= not is_home(group) and len(strangers) >= MAX_HANDSHAKES // 2
            few = of_group < MAX_HANDSHAKES_PER_HOST
            if not few or (full and not make_room(strangers, of_group)):
                return False
            self._unproven[channel] = group
            return True

    def identify(self, channel: Channel) -> bool:
        """Move a connection to the places of its peer; False if there is no room for it."""
        with self._lock:
            group, peer_id = self._unproven.get(channel), channel.peer_id
            holders = [other.peer_id for other in self._proven]
            if group is None or holders.count(peer_id) >= MAX_CONNECTIONS_PER_PEER:
                return False
            if not self._known.makes_room(channel, self._proven, MAX_CONNECTIONS):
                return False
            del self._unproven[channel]
            self._proven[channel] = group
            self._known.seen_at(group, peer_id)
            return True

    def public_hosts(self) -> dict[str, str]:
        """Return the host group of each peer whose newest connection has a public address."""
        with self._lock:
            return {
                channel.peer_id: group
                for channel, group in self._proven.items()
                if class_of(channel.remote[0]) is AddressClass.PUBLIC
            }

    def leave(self, channel: Channel) -> None:
        """Free the place of a connection that ended, if it has one."""
        with self._lock:
            self._unproven.pop(channel, None)
            self._proven.pop(channel, None)


def make_room(groups: Mapping[Channel, str], fewer: int) -> bool:
    """Close the oldest connection of the largest host group, and return True if it was closed.

    The group must have at least two connections more than `fewer`.
    """
    largest, count = Counter(groups.values()).most_common(1)[0] if groups else ("", 0)
    if count < fewer + 2:
        return False
    next(channel for channel, group in groups.items() if group == largest).close()
    return True


class ThreadGroup:
    """Threads of one transport. A thread's exception becomes an event, not a crash."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._living: set[threading.Thread] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run `work` in a new thread.

        Raises:
            OSError: The system has no thread left.
        """
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
        """Wait for all threads but the calling one; return True if they ended in time."""
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
    """Names that are excluded for a time that doubles with each failure in a row. Thread-safe.

    The names are in memory only, and bounded. Times are seconds of one monotonic clock.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[int, float]] = {}
        """Name → number of failures in a row, and the time at which its exclusion ends."""

    def fail(self, name: str, now: float) -> float:
        """Count a failure; return the seconds for which the name is excluded."""
        with self._lock:
            times, until = self._failed.pop(name, (0, now))
            times = times + 1 if now < until + FORGOTTEN_S else 1
            seconds = min(self._first_s * 2.0 ** min(times - 1, 30), self._longest_s)
            self._failed[name] = times, now + seconds
            while len(self._failed) > MOST_REMEMBERED:
                del self._failed[next(iter(self._failed))]
        return seconds

    def forgive(self, name: str) -> None:
        """Forget the failures of a name, which is excluded no longer."""
        with self._lock:
            self._failed.pop(name, None)

    def failures(self, name: str) -> int:
        """Return the number of failures in a row; 0 for an unknown name."""
        return self._failed.get(name, (0, 0.0))[0]

    def held(self, now: float) -> frozenset[str]:
        """Return all names that are excluded now."""
        with self._lock:
            return frozenset([name for name, (_, until) in self._failed.items() if now < until])


def offend(offenders: Backoff, peer_id: str, reason: Reason, now: float) -> float:
    """Exclude a peer if the reason is an offence; return for how many seconds.

    Args:
        offenders: Excluded peers.
        peer_id: Peer that was refused.
        reason: Reason of the refusal.
        now: Time in seconds of the monotonic clock of `offenders`.

    Returns:
        Seconds of the exclusion; 0 if the reason is no offence.
    """
    return offenders.fail(peer_id, now) if reason in OFFENCES else 0.0


class Unreachable(ConnectionError):
    """Error of a connection to a peer: no known way led there."""


@dataclass(frozen=True)
class Handlers:
    """Functions that the transport calls for events of other peers, on several threads at once.

    The first two must not block for long.
    """

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
    event_buckets: dict[str, TokenBucket] = field(default_factory=dict)
    channels: set[Channel] = field(default_factory=set)
    """Open channels. Each use is a single call of the set, and needs no lock."""

    def keep(self, channel: Channel) -> None:
        """Register a channel, which is closed with the transport at the latest."""
        self.channels.add(channel)
        if self.closing.is_set():
            channel.close()

    def report(self, event: str, refused: PeerRefused, /, **fields: object) -> None:
        """Emit an event that strangers can cause at will; beyond a rate it is left out."""
        bucket = self.event_buckets.setdefault(event, TokenBucket(EVENTS_PER_S, EVENTS_AT_ONCE))
        if bucket.allow(self.clock.now()):
            reason, detail = refused.reason.value, refused.detail[:200]
            self.events.emit(event, reason=reason, detail=detail, **fields)
