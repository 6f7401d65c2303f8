"""What a peer publishes on the DHT of itself: its lease. Signed, bounded, expiring.

What a lease claims of its chain proves nothing. It only says whether a look at that chain is worth
while.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

from blake3 import blake3

from atom.swarm.chain.commit import (
    Branch,
    Branches,
    Head,
    Incarnation,
    OptionalDigest,
    PeerId,
    Rank,
    rank,
)

LEASE_SECONDS = 8.0
RENEW_SECONDS = 2.0
CLOCKS_APART_SECONDS = 3.0
"""Between two clocks on the wall: hivemind refuses more (MAX_DHT_TIME_DISCREPANCY_SECONDS)."""

SHOWN = 8
"""Of the branches of a peer's chain, so many are in its lease: the newest."""
MAX_ADDRESSES = 8
MAX_TEXT_CHARACTERS = 128
MAX_LINKS = 16
MAX_ENDED_ATTEMPTS = 4
MAX_RATE = 1e15
"""Of every rate and time: far beyond any machine, and the sum of all peers' is still a number."""
MAX_LOSS = 1e6
"""Nats per token."""
LEAST_BYTES_PER_S = 1.0
"""Nobody measures less: a rate is of a mebibyte at least, in a ring that came to its end."""
LONGEST_ROUND_TRIP_S = 60.0
SHORT_NAME_BYTES = 8

Rate = Annotated[float, lambda number: 0 <= number <= MAX_RATE]
Share = Annotated[float, lambda share: 0 <= share <= 1]
Loss = Annotated[float, lambda number: abs(number) <= MAX_LOSS]
ShortName = Annotated[bytes, lambda raw: len(raw) == SHORT_NAME_BYTES]
Text = Annotated[str, lambda text: len(text) <= MAX_TEXT_CHARACTERS and text.isprintable()]
Word = Annotated[str, lambda text: re.fullmatch(r"[a-z-]{0,32}", text) is not None]
RoundTrip = Annotated[float, lambda seconds: 0 <= seconds <= LONGEST_ROUND_TRIP_S]
LinkRate = Annotated[float, lambda rate: LEAST_BYTES_PER_S <= rate <= MAX_RATE or rate == math.inf]


class PeerState(StrEnum):
    """A daemon's lifecycle as others see it."""

    STARTING = "starting"
    SYNCING = "syncing"
    ACCUMULATING = "accumulating"
    REDUCING = "reducing"
    STEPPING = "stepping"
    PAUSED = "paused"
    LEAVING = "leaving"
    LEFT = "left"


class Reached(StrEnum):
    """Whether others can dial a peer, as it says of itself, and as they say of it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = ""

    @classmethod
    def of(cls, answer: bytes) -> "Reached":
        """From the wire; whatever is no answer says nothing."""
        return {b"y": cls.YES, b"n": cls.NO}.get(answer, cls.UNKNOWN)

    def to_wire(self) -> bytes:
        return self.value[:1].encode()


@dataclass(frozen=True)
class Link:
    """What one peer measured of its way to another."""

    round_trip_s: RoundTrip
    bytes_per_s: LinkRate = math.inf
    """As fast as it was seen to go when it was what held things up; infinite: it never was."""


class NamedLink(NamedTuple):
    """The link to the peer of that short name."""

    peer: ShortName
    link: Link


class EndedAttempt(NamedTuple):
    """An attempt at a round that gave no result. For display."""

    round: int
    reason: Word
    """A named reason."""


class RoundUse(NamedTuple):
    """What the last round took of a peer, as it says. For display."""

    seconds: Rate
    """Since the commit before."""
    utilisation: Share
    """So much of that time was in passes."""
    sent_bytes: int
    """By its line to other peers, whatever for."""
    received_bytes: int


def short_name(peer_id: str) -> bytes:
    """Eight bytes that name a peer well enough for a hint."""
    return blake3(peer_id.encode()).digest(length=SHORT_NAME_BYTES)


@dataclass(frozen=True)
class Lease:
    """A peer's heartbeat. A hint: it may trigger a round, it never votes in one."""

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
    """Sequences accumulated for the next round (the mini-batch count of the paper)."""
    sequences_per_s: Rate
    tokens_per_s: Rate
    pass_seconds: Rate
    """Duration of one accumulation pass: how long a freeze may take."""
    loss: Loss | None
    """Mean loss of the last committed round; of text, nats per token."""
    state_digest: OptionalDigest
    addresses: Annotated[tuple[Text, ...], MAX_ADDRESSES]
    """Where the direct transport listens: "host:port"."""
    reached: Reached = Reached.UNKNOWN
    """Whether others can dial it, as far as it knows."""
    links: Annotated[tuple[NamedLink, ...], MAX_LINKS] = ()
    """What it measured of its ways to others."""
    ended_attempts: Annotated[tuple[EndedAttempt, ...], MAX_ENDED_ATTEMPTS] = ()
    """The last attempts at a round that it coordinated in vain."""
    branches: Annotated[tuple[Branch, ...], SHOWN] = ()
    """The newest rounds on its chain that no quorum decided (fork choice)."""
    branches_before: int = 0
    """So many older ones are left out."""
    void_passes: int = 0
    """Its last passes in a row that counted for nothing."""
    void_cause: Word = ""
    """Of the last of them."""
    last_round: RoundUse | None = None
    """None: it has not seen a whole one yet."""


def claimed_branches(lease: Lease, ours: Head) -> Branches:
    """Those that the lease left out are taken for ours."""
    return ours.branches[: lease.branches_before] + lease.branches


def claimed_rank(lease: Lease, ours: Head) -> Rank:
    return rank(lease.head, lease.round, claimed_branches(lease, ours))


def claims_better(lease: Lease, ours: Head) -> bool:
    """Whether the head that is claimed would be preferred to ours."""
    return bool(lease.head) and lease.head != ours.digest and claimed_rank(lease, ours) > ours.rank


def has_left(lease: Lease, ours: Head) -> bool:
    """Whether the publisher, as it says itself, has left our head by a branch. Or it tells of so
    many branches since that there is no room for those: it will not decide anything here either."""
    known, branches = len(ours.branches), claimed_branches(lease, ours)
    next_rounds = [branch.round for branch in branches[known : known + 1]]
    left = branches[:known] == ours.branches and next_rounds == [ours.round + 1]
    return lease.round > ours.round and (left or lease.branches_before > known)


def preferred(leases: Iterable[Lease], ours: Head) -> list[Lease]:
    """Best claim first."""
    return sorted(leases, key=lambda lease: claimed_rank(lease, ours), reverse=True)
