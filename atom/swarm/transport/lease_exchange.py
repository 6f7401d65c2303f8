"""Leases that known peers send each other over their own TLS connections. Decisions only, no I/O.

The DHT is open to all hosts, so a stranger can flood it, surround the key of the leases with nodes
that keep silent, or make its processes crash. A running swarm must not depend on it. Its voters
and members know each other, and have connections that only they can write to. Over those travel
the signed records that the DHT stores, byte for byte. A reader takes leases from both channels;
the serial decides which one is newer.

Each peer sends its own record to every mate when it changed, and every two seconds together with
a digest of each record that it holds of other mates. A mate that lacks one of these asks for it.
So two peers that cannot connect to each other hear of each other through a third.

A message also names the mates that its sender sees at the receiver's public address: these may be
in the receiver's own home, and `neighbours` says which ones are. No address is sent.

A mate that lies can forge no record (signatures) and keep no dead peer alive: a record carries its
own expiry, and an older one never replaces a newer one. It cannot make us keep records of peers
that our chain does not know, and it is limited in the number and size of its messages.
"""

import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from atom.swarm.chain.commit import Head
from atom.swarm.chain.messages import MAX_RECORDS, Leases
from atom.swarm.records.lease import LEASE_SECONDS, Lease, PeerState, SignedLease, short_name
from atom.swarm.records.manifest import decode_lease, read_claim
from atom.swarm.stream.bandwidth import TokenBucket

MAX_MATES = 73
"""Bound of mates: nine voters and 64 members. Further peers of a larger swarm use the DHT only."""
REMEMBERED_S = 600.0
"""Time for which a peer stays a mate after our head named it last. A member that missed a round is
still heard, and can come back while the DHT is down."""
DIGESTS_S = 2.0
"""Pause between two messages with digests."""
LATE_S = 2.5
"""Lead of a mate's record over ours before we ask for it: longer than a renewal, so that nothing
is asked for that its author is about to send itself."""
HEARD_S = 3.0
"""Time since a mate last sent a newer lease of its own, up to which it is expected to send the next
one: a lease is sent every two seconds."""
SILENT_S = 10.0
"""Pause between two messages to a mate whose lease has run out."""
OWN_BYTES_PER_S = 32_000.0
"""Upload for sending our own record to all mates when it changes."""
MESSAGES_PER_S, MESSAGES_AT_ONCE = 8.0, 40.0
"""Messages that we read of each mate; more are ignored."""
MAX_SECONDS_AHEAD = 20.0
"""Longest time to a record's expiry: its lifetime, and a margin for clocks that differ."""
WITNESSES = 2
"""Mates with tenure that must see another mate at our public address."""
DIGEST = struct.Struct(">8sd")
"""Digest of a lease: short name of its peer, and Unix time at which the record ends."""
_NEVER = float("-inf")


class _Mate:
    """State of one known peer. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.named_at = self.heard_at = self.tried_at = self.said_at = _NEVER
        """Times when our head named it, its lease was replaced by a newer one, a message was sent
        to it, and it sent a newer lease itself: each time the last one."""
        self.held: SignedLease | None = None
        """Newest lease of this peer."""
        self.claims, self.claimed_at = frozenset[bytes](), _NEVER
        """Short names of the peers that it saw at our public address, and the time of its word."""
        self.budget = TokenBucket(MESSAGES_PER_S, MESSAGES_AT_ONCE)

    def is_alive(self, now: float) -> bool:
        return now - self.heard_at <= LEASE_SECONDS

    def is_due(self, now: float) -> bool:
        """Return True if this mate should get the message that is sent now."""
        if self.held is not None and self.held.lease.state is PeerState.LEFT:
            return False
        return self.is_alive(now) or now - self.tried_at >= SILENT_S

    def is_behind(self, expires_at: float) -> bool:
        """Return True if a record with this expiry is much newer than the one we hold."""
        return self.held is None or expires_at - self.held.expires_at > LATE_S


class LeaseExchange:
    """Newest leases of our mates, and the messages about them. Thread-safe.

    A *mate* is a voter of our head or a member of its last round, or was one in the last ten
    minutes. All `now` are seconds of one monotonic clock, all `unix_now` are Unix time.
    """

    def __init__(
        self, me: str, place: str, public_hosts: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        """Create an exchange without mates.

        Args:
            me: our peer id.
            place: DHT key of the run's leases (`lease_key`); records of other runs are ignored.
            public_hosts: returns the public host from which each peer is connected now.
        """
        self._me, self._place, self._public_hosts = me, place, public_hosts
        self._lock = threading.Lock()
        self._tenured: frozenset[str] = frozenset()
        self._mates: dict[str, _Mate] = {}
        """Mates by peer id; the peers that our head named last are at the end."""
        self._own: SignedLease | None = None
        self._sent: SignedLease | None = None
        """Own lease that was sent last."""
        self._sent_at = self._digests_at = _NEVER
        self.has_changed = threading.Event()
        """Set when there is a newer lease of a mate; clear it before you read `merged`."""

    def know(self, head: Head, now: float) -> None:
        """Make the voters and members of `head` our mates, and forget mates of long ago."""
        with self._lock:
            self._tenured = head.tenured
            for peer_id in (*head.members, *(voter.peer_id for voter in head.voters)):
                self._mates[peer_id] = self._mates.pop(peer_id, _Mate())
                self._mates[peer_id].named_at = now
            for number, (peer_id, mate) in enumerate([*self._mates.items()][::-1]):
                if number >= MAX_MATES or now - mate.named_at > REMEMBERED_S:
                    del self._mates[peer_id]

    def publish(self, own: SignedLease) -> None:
        """Replace our own lease; `due` sends it."""
        with self._lock:
            self._own = own

    def due(self, now: float) -> dict[str, Leases]:
        """Return the messages that are due now, by the peer ids of their receivers.

        A peer that no other peer knows sends nothing: newcomers are seen on the DHT. Call this
        method often, and send the messages.
        """
        hosts = self._public_hosts()
        with self._lock:
            own, held = self._own, tuple[bytes, ...]()
            if own is None or self._me not in self._mates:
                return {}
            pause_s = len(own.record) * len(self._mates) / OWN_BYTES_PER_S
            is_own_due = own.lease.state is PeerState.LEFT or now - self._sent_at >= pause_s
            if now - self._digests_at >= DIGESTS_S:
                self._digests_at, held = now, tuple(self._digests(now))
            elif own is self._sent or not is_own_due:
                return {}
            self._sent, self._sent_at = own, now
            hosts = {peer_id: hosts[peer_id] for peer_id, _ in self._others() if peer_id in hosts}
            receivers = {peer_id: mate for peer_id, mate in self._others() if mate.is_due(now)}
            for mate in receivers.values():
                mate.tried_at = now
        return {
            peer_id: Leases((own.record,), held, neighbours=neighbour_names(peer_id, hosts))
            for peer_id in receivers
        }

    def hear(self, sender: str, message: Leases, now: float, unix_now: float) -> Leases | None:
        """Take the records of a message, and return an answer, or None if there is nothing to say.

        Args:
            sender: peer id of the authenticated sender; only mates are listened to.

        Raises:
            PeerRefused: a record is malformed or badly signed.
        """
        with self._lock:
            mate = self._mates.get(sender)
            if mate is None or not mate.budget.allow(now):
                return None
            if message.neighbours:
                mate.claims, mate.claimed_at = frozenset(message.neighbours), now
            for record in message.records:
                self._take(record, now, unix_now)
            if mate.heard_at == now:
                mate.said_at = now
            by_name = {short_name(peer_id): mate for peer_id, mate in self._others()}
            theirs = dict(map(DIGEST.unpack, message.held))
            behind = [n for n in by_name.keys() & theirs if by_name[n].is_behind(theirs[n])]
            asked = [by_name[name].held for name in message.wanted if name in by_name]
            records = tuple(held.record for held in asked if held is not None)
        wanted = tuple(behind[:MAX_RECORDS])
        return Leases(records, wanted=wanted) if records or wanted else None

    def read(self, leases: Mapping[bytes, Lease], now: float, unix_now: float) -> None:
        """Take the records of mates from a reading of the DHT, so that other mates can get them.

        Raises:
            PeerRefused: a record is badly signed; the DHT process passes on none of these.
        """
        with self._lock:
            for record, lease in leases.items():
                if lease.peer_id in self._mates:
                    self._take(record, now, unix_now)

    def merged(self, leases: Mapping[str, Lease], now: float) -> dict[str, Lease]:
        """Return a reading of the DHT, by peer id, with the leases of living mates and our own."""
        with self._lock:
            own = {} if self._own is None else {self._me: self._own.lease}
            return {**own, **leases, **{peer: held.lease for peer, held in self._living(now)}}

    def hears(self, peer_ids: Iterable[str], now: float) -> bool:
        """Return True if there are other peers, and each of them sends us its leases itself."""
        others = {*peer_ids} - {self._me}
        with self._lock:
            saying = {peer for peer, mate in self._others() if now - mate.said_at <= HEARD_S}
            return bool(others) and saying.issuperset(others)

    def neighbours(self, now: float) -> frozenset[str]:
        """Return the mates that enough witnesses saw at our public address within a lease's time.

        Witnesses are mates with tenure, and none is a witness of itself.
        """
        with self._lock:
            seen = Counter(
                name
                for witness, mate in self._others()
                if witness in self._tenured and now - mate.claimed_at <= LEASE_SECONDS
                for name in mate.claims - {short_name(witness)}
            )
            return frozenset(p for p, _ in self._others() if seen[short_name(p)] >= WITNESSES)

    def _others(self) -> Iterable[tuple[str, _Mate]]:
        return [(peer_id, mate) for peer_id, mate in self._mates.items() if peer_id != self._me]

    def _living(self, now: float) -> Iterator[tuple[str, SignedLease]]:
        for peer_id, mate in self._others():
            if mate.held is not None and mate.is_alive(now):
                yield peer_id, mate.held

    def _digests(self, now: float) -> Iterator[bytes]:
        return (DIGEST.pack(short_name(p), held.expires_at) for p, held in self._living(now))

    def _take(self, record: bytes, now: float, unix_now: float) -> None:
        """Keep the record if it is a newer lease of a mate. Raises: PeerRefused."""
        if any(mate.held and mate.held.record == record for mate in self._mates.values()):
            return  # it is known, and its signature was checked
        claim = read_claim(record)
        mate, ends = self._mates.get(claim.author), claim.expires_at or 0.0
        if mate is None or claim.author == self._me or claim.place != self._place:
            return
        is_newer = mate.held is None or ends > mate.held.expires_at
        if is_newer and unix_now < ends <= unix_now + MAX_SECONDS_AHEAD:
            mate.held, mate.heard_at = SignedLease(record, decode_lease(record), ends), now
            self.has_changed.set()


def neighbour_names(peer_id: str, hosts: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the short names of the other peers at the host of one peer, up to a bound.

    Args:
        hosts: host group of each peer that is seen at a public address.
    """
    host = hosts.get(peer_id)
    others = (other for other, at in hosts.items() if at == host and other != peer_id)
    return tuple(map(short_name, others))[:MAX_RECORDS]
