"""Leases: the signed, bounded, expiring records that peers publish about themselves on the DHT; and
the decision which peers are alive, by their leases and our own clock alone.

A lease's claims about its chain prove nothing. They only say whether that chain is worth a look. A
lease proves life only by *changing*: by a serial (or an incarnation) that we have not seen before.
The time since then is measured on our clock, so a wrong wall clock, a replayed record or a slow
DHT replica cannot keep a dead peer alive. When we ourselves were not looking (frozen, suspended,
DHT unreachable), everything is unknown again and every timer starts over.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

from blake3 import blake3

from atom.config.model_and_data import MAX_TEXTS
from atom.config.section import PEER_NAME
from atom.swarm.chain.commit import (
    Branch,
    Branches,
    Head,
    Incarnation,
    OptionalDigest,
    PeerId,
    Rank,
    Voter,
    rank,
)

PROTOCOL_VERSION = 21
"""Version of everything that peers send each other. Peers of different versions do not connect, and
do not count each other; a lease keeps its old fields in later versions, so that they can tell."""
LEASE_SECONDS = 8.0
RENEW_SECONDS = 2.0
CLOCKS_APART_SECONDS = 3.0
"""Largest difference of two clocks for hivemind (its MAX_DHT_TIME_DISCREPANCY_SECONDS)."""

SHOWN = 8
"""Number of branches in a lease: the newest ones of the peer's chain."""
MAX_ADDRESSES = 8
MAX_TEXT_CHARACTERS = 128
MAX_LINKS = 16
MAX_RATE = 1e15
"""Bound of every rate and time: far beyond any machine, and the sum over all peers is finite."""
MAX_LOSS = 1e6
"""Bound of a loss, nats per token."""
LEAST_BYTES_PER_S = 1.0
"""Least rate of a link: it is measured over a mebibyte or more, in a completed exchange."""
LONGEST_ROUND_TRIP_S = 60.0
SHORT_NAME_BYTES = 8

Rate = Annotated[float, lambda number: 0 <= number <= MAX_RATE]
Share = Annotated[float, lambda share: 0 <= share <= 1]
Loss = Annotated[float, lambda number: abs(number) <= MAX_LOSS]
ShortName = Annotated[bytes, lambda raw: len(raw) == SHORT_NAME_BYTES]
Text = Annotated[str, lambda text: len(text) <= MAX_TEXT_CHARACTERS and text.isprintable()]
PeerName = Annotated[str, lambda text: re.fullmatch(f"(?:{PEER_NAME})?", text) is not None]
Word = Annotated[str, lambda text: re.fullmatch(r"[a-z-]{0,32}", text) is not None]
MAX_SAMPLE_BYTES = 320
SampleLine = Annotated[
    str, lambda text: len(text.encode()) <= MAX_SAMPLE_BYTES and text.isprintable()
]
RoundTrip = Annotated[float, lambda seconds: 0 <= seconds <= LONGEST_ROUND_TRIP_S]
LinkRate = Annotated[float, lambda rate: LEAST_BYTES_PER_S <= rate <= MAX_RATE or rate == math.inf]


class PeerState(StrEnum):
    """Stage of a daemon's life, as other peers see it."""

    STARTING = "starting"
    SYNCING = "syncing"
    ACCUMULATING = "accumulating"
    REDUCING = "reducing"
    STEPPING = "stepping"
    PAUSED = "paused"
    LEAVING = "leaving"
    LEFT = "left"


class Reached(StrEnum):
    """Answer to the question whether other peers can dial a peer."""

    YES = "yes"
    NO = "no"
    UNKNOWN = ""

    @classmethod
    def of(cls, answer: bytes) -> "Reached":
        """Return the answer in a frame; UNKNOWN if the frame holds none."""
        return next((each for each in cls if each.encode() == answer), cls.UNKNOWN)


MOST_PUNCHED = 16
"""Most members of an exchange in which peers that cannot be dialled own parts. Two such peers are
introduced for each connection; with more members, that takes longer than the opening may take."""


class HowReached(StrEnum):
    """Way in which other peers connect to a peer, as it reports in its lease."""

    OPEN = "open"
    """They dial it."""
    MAPPED = "mapped"
    """They dial a port that its router opened on request."""
    PUNCHED = "punched"
    """It is *steady*: other peers that cannot be dialled connect to it by punching."""
    CALLED = "called"
    """Other peers call it over lines. It cannot connect to another peer that cannot be dialled."""
    UNKNOWN = ""


@dataclass(frozen=True)
class Link:
    """Measurements that one peer made of its connection to another peer."""

    peer: ShortName
    """Short name of the other peer."""
    round_trip_s: RoundTrip
    bytes_per_s: LinkRate = math.inf
    """Rate seen when this connection held up an exchange; infinite if it never did."""


class RoundUse(NamedTuple):
    """Cost of the last round for a peer, by its own word. For display."""

    seconds: Rate
    """Seconds since the commit before."""
    utilisation: Share
    """Share of these seconds that the peer spent in passes."""
    sent_bytes: int
    """Bytes sent to other peers, for any purpose."""
    received_bytes: int
    usual_seconds: Rate = 0.0
    """Mean seconds of this peer's recent rounds; 0: unknown, from an older version."""


class Validation(NamedTuple):
    """Loss on the run's held-back text. For display."""

    round: int
    """Round after which the weights were validated."""
    loss: Loss
    """Mean of the losses of the run's texts, in the unit of `Lease.loss`."""
    by_text: Annotated[tuple[Loss, ...], MAX_TEXTS] = ()
    """Loss of each text with held-back parts (`Data.held_back`); empty if there is one text."""

    @classmethod
    def of(cls, round_number: int, losses: Sequence[float]) -> "Validation":
        """Return the validation after a round, from the loss of each text."""
        rounded = tuple(round(loss, 6) for loss in losses)
        mean = round(sum(losses) / len(losses), 6)
        return cls(round_number, mean, rounded if len(rounded) > 1 else ())


class SampleText(NamedTuple):
    """Text that the weights of a round wrote. For display."""

    round: int
    text: SampleLine
    """Prompt and text, in one line."""


def short_name(peer_id: str) -> bytes:
    """Return an eight-byte hash of a peer id, unique enough for a hint."""
    return blake3(peer_id.encode()).digest(length=SHORT_NAME_BYTES)


@dataclass(frozen=True)
class Lease:
    """Heartbeat of a peer. It is a hint: it may trigger a round, but never votes in one.

    Fields are numbered on the wire in this order (`atom.swarm.schema`). A change of the order would
    hide the peers of older versions, whose leases would be refused: a new field goes to the end.
    """

    peer_id: PeerId
    incarnation: Incarnation
    serial: int
    """Counts renewals of this incarnation; an older one is a replay."""
    issued_at: Rate
    """Publisher's Unix time (only for display: no safety rule reads a wall clock)."""
    state: PeerState
    head: OptionalDigest
    round: int
    sequences: int
    """Sequences accumulated for the next round (mini-batches in the paper's words)."""
    sequences_per_s: Rate
    tokens_per_s: Rate
    pass_seconds: Rate
    """Duration of one accumulation pass, and so the longest time that a freeze takes."""
    loss: Loss | None
    "Mean loss of the last committed round; for text, nats per token."
    state_digest: OptionalDigest
    addresses: Annotated[tuple[Text, ...], MAX_ADDRESSES]
    """Addresses of the direct transport: "host:port"."""
    reached: Reached = Reached.UNKNOWN
    """Answer to the question whether other peers can dial this peer, as far as it knows."""
    links: Annotated[tuple[Link, ...], MAX_LINKS] = ()
    """Measured connections to other peers."""
    version: int = PROTOCOL_VERSION
    """Protocol version of the publisher; 0 if it is older than this field."""
    branches: Annotated[tuple[Branch, ...], SHOWN] = ()
    """The newest rounds on its chain that no quorum decided (fork choice)."""
    branches_before: int = 0
    """Number of older branches that are left out."""
    void_passes: int = 0
    """Number of its latest passes in a row that counted for nothing."""
    void_cause: Word = ""
    """Reason of the latest void pass."""
    last_round: RoundUse | None = None
    """Cost of the last round; None if the peer has not seen a whole round yet."""
    validation: Validation | None = None
    """Newest validation of this process; None if there was none yet."""
    sample: SampleText | None = None
    """Newest sample of this process, if its owner asks for samples."""
    name: PeerName = ""
    """Name that its owner chose. For display: two peers may have one name."""
    reach: HowReached = HowReached.UNKNOWN
    """Way in which other peers connect to this peer, as far as it knows."""


class SignedLease(NamedTuple):
    """A lease and the signed record that carries it."""

    record: bytes
    """Bytes that the DHT stores and that peers send each other."""
    lease: Lease
    expires_at: float
    """Unix time at which the record expires; the signature covers it."""


def of_our_version(leases: Mapping[str, Lease]) -> dict[str, Lease]:
    """Return the leases of peers that we can speak to, by peer id."""
    return {peer: lease for peer, lease in leases.items() if lease.version == PROTOCOL_VERSION}


def versions_text(leases: Iterable[Lease]) -> str:
    """Return "3 peers run protocol version 22"; empty if all peers run ours."""
    counts = Counter(lease.version for lease in leases if lease.version != PROTOCOL_VERSION)
    return ", ".join(
        f"{'1 peer runs' if count == 1 else f'{count:,} peers run'} protocol version {version}"
        for version, count in sorted(counts.items())
    )


def claimed_branches(lease: Lease, ours: Head) -> Branches:
    """Return the claimed chain's branches; the ones omitted in the lease are taken from ours."""
    return ours.branches[: lease.branches_before] + lease.branches


def claimed_rank(lease: Lease, ours: Head) -> Rank:
    """Return the rank of the head that the lease claims."""
    return rank(lease.head, lease.round, claimed_branches(lease, ours))


def claims_better(lease: Lease, ours: Head) -> bool:
    """Return True if fork choice would prefer the claimed head to ours."""
    return bool(lease.head) and lease.head != ours.digest and claimed_rank(lease, ours) > ours.rank


def has_left(lease: Lease, ours: Head) -> bool:
    """Return True if the publisher says that it has left our head by a branch.

    Also if it names so many later branches that ours no longer fit into its lease: such a peer
    decides nothing here either.
    """
    known, branches = len(ours.branches), claimed_branches(lease, ours)
    next_rounds = [branch.round for branch in branches[known : known + 1]]
    left = branches[:known] == ours.branches and next_rounds == [ours.round + 1]
    return lease.round > ours.round and (left or lease.branches_before > known)


def preferred(leases: Iterable[Lease], ours: Head) -> list[Lease]:
    """Return the leases, best claim first."""
    return sorted(leases, key=lambda lease: claimed_rank(lease, ours), reverse=True)


GAP_SECONDS = 4.0
"""Longest pause between two readings. After a longer one everything is unknown again."""
MAX_PEERS = 1024
"""Bound of remembered peers. The peer that was absent from readings for the longest time is
dropped."""
MAX_INCARNATIONS = 4
"""Incarnations remembered per peer, for replay protection."""
MAX_ASKED = 256
_NEVER = float("-inf")
_TWIN_SIGNS = 2
"""Newer leases that prove a second process with the same peer id. One old lease of a dead process
may appear late, but hardly two."""


@dataclass
class _Sighting:
    """Observations of one incarnation of one peer."""

    lease: Lease
    first_seen: float
    """Time at which its first lease was read."""
    last_sign: float
    """Time at which its serial last grew, if that was after the last gap; else `_NEVER`."""
    last_progress: float = _NEVER
    """Time at which its serial last grew, as `last_sign`, but the first lease does not count: it
    may be an old record."""


class LeaseBook:
    """Record of all readings of the DHT: which peers are fresh, silent or gone.

    Times are seconds of one monotonic clock that also runs while the machine sleeps. Not
    thread-safe. `head`, counts and states in the leases are claims of the peers.
    """

    def __init__(self) -> None:
        self._peers: dict[str, dict[bytes, _Sighting]] = {}
        """Sightings by peer id and incarnation; the peer that was read last is at the end."""
        self._asked_at: dict[Voter, float] = {}
        self.updated_at = _NEVER
        """Time of the last reading."""
        self._watching_since = _NEVER

    def update(self, leases: Mapping[str, Lease], now: float) -> None:
        """Take verified leases by peer id, read on the DHT or sent by their peers directly.

        A lease that is not newer than the known one changes nothing. Never call this method for a
        failed reading: an empty mapping means that no peer is there, which counts against all."""
        if not self.is_watching(now):
            self._forget_signs()
            self._watching_since = now
        self.updated_at = now
        for peer_id, lease in leases.items():
            self._see(peer_id, lease, now)
        for peer_id in list(self._peers)[:-MAX_PEERS]:
            del self._peers[peer_id]

    def is_watching(self, now: float) -> bool:
        """Return True if our readings were close enough together to judge any peer."""
        return now - self.updated_at <= GAP_SECONDS

    def fresh(self, now: float) -> dict[str, Lease]:
        """Return the current lease of every living peer; empty while we are not watching.

        A peer lives if its lease grew within the lease time, and the peer has neither left nor been
        doubled.
        """
        living = (self._living(peer_id, now) for peer_id in self._peers)
        return {
            lease.peer_id: lease
            for lease in living
            if lease is not None and lease.state != PeerState.LEFT
        }

    def missing_for(self, voter: Voter, now: float) -> float:
        """Return the seconds for which this incarnation was silent while we watched without a gap.

        Counted from its last sign of life; without one since our watch began, from the moment
        we watched *and* were first asked about it (a new voter's lease may still be on its way).
        If two processes live under the peer's id, the time counts from then on: messages may reach
        the other process.
        Compare it with the whole grace time, lease time included. 0 while we are blind.
        """
        if not self.is_watching(now):
            return 0.0
        asked_at = self._asked_at.setdefault(voter, now)
        if len(self._asked_at) > MAX_ASKED:
            del self._asked_at[next(iter(self._asked_at))]
        sighting = self._peers.get(voter.peer_id, {}).get(voter.incarnation)
        if sighting is None or sighting.last_sign == _NEVER:
            return now - max(self._watching_since, asked_at)
        doubled_since = self._doubled_since(voter.peer_id, now)
        return now - (sighting.last_sign if doubled_since is None else doubled_since)

    def is_dead(self, voter: Voter, now: float) -> bool:
        """Return True if this incarnation is gone.

        It has left, which is final, or it is silent while its peer lives as another incarnation.
        """
        sighting = self._peers.get(voter.peer_id, {}).get(voter.incarnation)
        if sighting is not None and sighting.lease.state == PeerState.LEFT:
            return True
        current = self._living(voter.peer_id, now)
        return current is not None and current.incarnation != voter.incarnation

    def _living(self, peer_id: str, now: float) -> Lease | None:
        """Return the lease of the peer's only living incarnation; None without one."""
        recent = self._recent(peer_id, now)
        if not recent or self._doubled_since(peer_id, now) is not None:
            return None
        return max(recent, key=lambda each: (each.last_sign, each.first_seen)).lease

    def _doubled_since(self, peer_id: str, now: float) -> float | None:
        """Return the time since which two incarnations of one id live (a cloned machine): neither
        is trusted. After a restart the old one makes no progress once the new one is seen."""
        recent = self._recent(peer_id, now)
        if any(
            a.last_progress > b.first_seen and b.last_progress > a.first_seen
            for a, b in itertools.combinations(recent, 2)
        ):
            return max(self._watching_since, *(each.first_seen for each in recent))
        return None

    def _recent(self, peer_id: str, now: float) -> list[_Sighting]:
        """Return the incarnations with a newer lease within the lease time; none while blind."""
        known = self._peers.get(peer_id, {}).values() if self.is_watching(now) else ()
        return [each for each in known if now - each.last_sign <= LEASE_SECONDS]

    def _see(self, peer_id: str, lease: Lease, now: float) -> None:
        known = self._peers[peer_id] = self._peers.pop(peer_id, {})
        sighting = known.get(lease.incarnation)
        if sighting is None:
            if len(known) >= MAX_INCARNATIONS:
                del known[min(known, key=lambda each: known[each].last_sign)]
            known[lease.incarnation] = _Sighting(lease, now, now)
        elif lease.serial > sighting.lease.serial and sighting.lease.state != PeerState.LEFT:
            sighting.lease = lease
            sighting.last_sign = sighting.last_progress = now

    def _forget_signs(self) -> None:
        """Forget signs of life after a gap. Serials stay known, against replays."""
        for incarnations in self._peers.values():
            for sighting in incarnations.values():
                sighting.last_sign = _NEVER


class TwinWatch:
    """Watch over our own name in the directory: another process may use a copy of our key.

    Other peers find this by `LeaseBook`, which then counts both processes as silent.
    """

    def __init__(self) -> None:
        self._other: Lease | None = None
        self._signs = 0

    def sees(self, lease: Lease | None, me: Voter) -> bool:
        """Return True if this lease shows that another process runs under our peer id.

        The lease of a process that ended before we began stays for a while, but does not change.

        Args:
            lease: Lease under our peer id in the latest reading; None if there is none.
            me: This process.
        """
        if lease is None or lease.incarnation == me.incarnation:
            return False
        if self._other is None or lease.incarnation != self._other.incarnation:
            self._other, self._signs = lease, 0
        elif lease.serial > self._other.serial:
            self._other, self._signs = lease, self._signs + 1
        return self._signs >= _TWIN_SIGNS
