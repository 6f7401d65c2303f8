"""Leases that known peers send each other over their own TLS connections. Decisions only, no I/O.

The DHT is open to everybody, so a stranger can flood it, surround the key of the leases with nodes
that keep silent, or make its processes crash. A running swarm must not depend on it. Its voters
and members know each other, and have connections that only they can write to. Over those travel
the signed records that the DHT stores, byte for byte. A reader takes leases from both channels;
the serial decides which one is newer.

Each peer sends its own record to every mate when it changed, and every two seconds together with
a digest of each record that it holds of other mates. A mate that lacks one of these asks for it.
So two peers that cannot connect to each other hear of each other through a third.

A mate that lies can forge no record (signatures) and keep no dead peer alive: a record carries its
own expiry, and an older one never replaces a newer one. It cannot make us keep records of peers
that our chain does not know, and it is limited in the number and size of its messages.
"""

import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from atom.swarm.chain.commit import Head
from atom.swarm.chain.messages import MAX_DIGESTS, MAX_RECORDS, Leases
from atom.swarm.records.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    SHORT_NAME_BYTES,
    Lease,
    PeerState,
    SignedLease,
    short_name,
)
from atom.swarm.records.manifest import decode_lease, read_claim
from atom.swarm.stream.bandwidth import TokenBucket

MAX_MATES = 73
"""Nine voters and 64 members. In a larger swarm, the DHT is the only channel for the others."""
REMEMBERED_S = 600.0
"""Time for which a peer stays a mate after our head named it last. A member that missed a round is
still heard, and can come back while the DHT is down."""
LATE_S = 2.5
"""Lead of a mate's record over ours before we ask for it: longer than a renewal, so that nothing
is asked for that its author is about to send itself."""
SILENT_S = 10.0
"""Pause between two messages to a mate whose lease has run out."""
OWN_BYTES_PER_S = 32_000.0
"""Upload for sending our own record to all mates when it changes."""
MESSAGES_PER_S, MESSAGES_AT_ONCE = 8.0, 40.0
"""Messages that we read of each mate; more are ignored."""
MAX_SECONDS_AHEAD = 20.0
"""Longest time to a record's expiry: its lifetime, and a margin for clocks that differ."""
_EXPIRY = struct.Struct(">d")
_NEVER = float("-inf")


@dataclass
class _Mate:
    """State that we keep of one known peer. Times are monotonic seconds."""

    named_at: float = _NEVER
    """Time when our head named it last."""
    held: SignedLease | None = None
    """Its newest lease."""
    heard_at: float = _NEVER
    """Time when its lease was replaced by a newer one."""
    tried_at: float = _NEVER
    """Time of the last message to it."""
    budget: TokenBucket = field(
        default_factory=lambda: TokenBucket(MESSAGES_PER_S, MESSAGES_AT_ONCE)
    )

    def is_alive(self, now: float) -> bool:
        """Return True if a newer lease came within the lease time."""
        return now - self.heard_at <= LEASE_SECONDS

    def is_due(self, now: float) -> bool:
        """Return True if it should get the message that is sent now."""
        if self.held is not None and self.held.lease.state is PeerState.LEFT:
            return False
        return self.is_alive(now) or now - self.tried_at >= SILENT_S


class LeaseExchange:
    """Newest leases of our mates, and the messages about them. Thread-safe.

    A *mate* is a voter of our head or a member of its last round, or was one in the last ten
    minutes. All `now` are seconds of one monotonic clock, all `unix_now` are Unix time.
    """

    def __init__(self, me: str, place: str) -> None:
        """Create an exchange without mates.

        Args:
            me: our peer id.
            place: DHT key of the run's leases (`lease_key`); records of other runs are ignored.
        """
        self._me, self._place = me, place
        self._lock = threading.Lock()
        self._mates: dict[str, _Mate] = {}
        """By peer id; the ones that our head named last are at the end."""
        self._own: SignedLease | None = None
        self._sent: SignedLease | None = None
        """Own lease that was sent last."""
        self._sent_at = self._digests_at = _NEVER
        self._has_news = False

    def know(self, head: Head, now: float) -> None:
        """Make the voters and members of `head` our mates, and forget mates of long ago."""
        with self._lock:
            for peer_id in (*head.members, *(voter.peer_id for voter in head.voters)):
                mate = self._mates.pop(peer_id, None) or _Mate()
                mate.named_at = now
                self._mates[peer_id] = mate
            named = [*self._mates.items()][-MAX_MATES:]
            self._mates = {
                peer_id: mate for peer_id, mate in named if now - mate.named_at <= REMEMBERED_S
            }

    def publish(self, own: SignedLease) -> None:
        """Replace our own lease; `due` sends it."""
        with self._lock:
            self._own = own

    def due(self, now: float) -> tuple[list[str], Leases]:
        """Return the message that should be sent now, and the peer ids that should get it.

        There is no receiver if nothing is due, or if no other peer knows us: newcomers are seen
        on the DHT. Call it often, and send what it returns.
        """
        with self._lock:
            own, with_digests = self._own, now - self._digests_at >= RENEW_SECONDS
            if own is None or self._me not in self._mates:
                return [], Leases()
            if not with_digests and not self._is_own_due(own, now):
                return [], Leases()
            self._sent, self._sent_at = own, now
            self._digests_at = now if with_digests else self._digests_at
            digests = tuple(self._digests(now)) if with_digests else ()
            receivers = [peer for peer, mate in self._others() if mate.is_due(now)]
            for peer_id in receivers:
                self._mates[peer_id].tried_at = now
            return receivers, Leases((own.record,), digests[:MAX_DIGESTS])

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
            for record in message.records:
                self._has_news |= self._take(record, now, unix_now)
            by_name = {short_name(peer): mate for peer, mate in self._others()}
            wanted = tuple(_lacking(message.held, by_name))[:MAX_RECORDS]
            asked = [by_name[name].held for name in message.wanted if name in by_name]
            records = tuple(held.record for held in asked if held is not None)
        return Leases(records, wanted=wanted) if records or wanted else None

    def read(self, leases: Mapping[bytes, Lease], now: float, unix_now: float) -> None:
        """Take the records of mates from a reading of the DHT, so that other mates can get them.

        Raises:
            PeerRefused: a record is badly signed; the DHT process passes on none of these.
        """
        with self._lock:
            for record, lease in leases.items():
                mate = self._mates.get(lease.peer_id)
                if mate is not None and (mate.held is None or mate.held.record != record):
                    self._take(record, now, unix_now)

    def merged(self, leases: Mapping[str, Lease], now: float) -> dict[str, Lease]:
        """Return a reading of the DHT, by peer id, with the leases of living mates and our own."""
        with self._lock:
            own = {} if self._own is None else {self._me: self._own.lease}
            mates = {
                peer_id: mate.held.lease
                for peer_id, mate in self._others()
                if mate.held is not None and mate.is_alive(now)
            }
        return {**own, **leases, **mates}

    def take_news(self) -> bool:
        """Return True if a mate sent a newer lease since the last call."""
        with self._lock:
            has_news, self._has_news = self._has_news, False
            return has_news

    def _is_own_due(self, own: SignedLease, now: float) -> bool:
        pause_s = len(own.record) * len(self._mates) / OWN_BYTES_PER_S
        has_left = own.lease.state is PeerState.LEFT
        return own is not self._sent and (has_left or now - self._sent_at >= pause_s)

    def _digests(self, now: float) -> Iterator[bytes]:
        for peer_id, mate in self._others():
            if mate.held is not None and mate.is_alive(now):
                yield short_name(peer_id) + _EXPIRY.pack(mate.held.expires_at)

    def _others(self) -> list[tuple[str, _Mate]]:
        return [(peer, mate) for peer, mate in self._mates.items() if peer != self._me]

    def _take(self, record: bytes, now: float, unix_now: float) -> bool:
        """Return True if the record is a newer lease of a mate. Raises: PeerRefused."""
        if any(mate.held and mate.held.record == record for mate in self._mates.values()):
            return False
        claim = read_claim(record)
        expires_at, mate = claim.expires_at, self._mates.get(claim.author)
        if mate is None or claim.author == self._me or claim.place != self._place:
            return False
        if expires_at is None or not unix_now < expires_at <= unix_now + MAX_SECONDS_AHEAD:
            return False
        if mate.held is not None and expires_at <= mate.held.expires_at:
            return False
        mate.held = SignedLease(record, decode_lease(record), expires_at)
        mate.heard_at = now
        return True


def _lacking(digests: Iterable[bytes], by_name: Mapping[bytes, _Mate]) -> Iterator[bytes]:
    """Yield short names of mates of which the sender of these digests has a much newer lease."""
    for digest in digests:
        name, (expires_at,) = digest[:SHORT_NAME_BYTES], _EXPIRY.unpack(digest[SHORT_NAME_BYTES:])
        mate = by_name.get(name)
        if mate is not None and (mate.held is None or expires_at - mate.held.expires_at > LATE_S):
            yield name
