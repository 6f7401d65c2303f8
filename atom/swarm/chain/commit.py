"""The chain of commits: the value that a round decided, its certificate, and the head that names
the resulting state. Pure.

A replica's state is named by its *head*: a digest that covers every commit since genesis. Equal
heads mean equal bytes. Everything here is a frozen value. Digests are taken over canonical JSON
(sorted keys, floats as hexadecimal), so they do not depend on a library's wire encoding.

The voters of a round are fixed by the previous commit, never by a local opinion about which peers
are alive: two such opinions make two majorities. From four voters on, any two quorums share two
voters, so one of them is honest if one voter lies (`is_quorum`). `succession.py` has the rules for
the value that may follow a head.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Annotated, Any

from blake3 import blake3

from atom.swarm.chain.tenure import NEVER, Tenures, after_round, from_the_start
from atom.swarm.identity import is_peer_id, verify

VOTE_DOMAIN = "vote"
"""Signature domain of a vote: over `vote_payload(...)`."""

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_PLAIN = (str, int, type(None))
_AS_HEX = (bytes, float)
_SEQUENCES = (list, tuple)

MAX_VOTERS = 9
"""Bound of an electorate: more voters make a round slower, not safer."""
MAX_CONTRIBUTIONS = 4096
MAX_SEQUENCES = 2**24
"""Bound of one peer's sequences in one round: the largest global batch of a run file."""
MAX_LOSS = 1e15
"""Bound of a loss summed over a peer's sequences, nats: any sum of such losses stays finite."""
MAX_COUNT = 2**40
"""Bound of round numbers and serials: far beyond any run."""
BRANCH_NAME_BYTES = 8

Digest = Annotated[bytes, lambda raw: len(raw) == 32]
OptionalDigest = Annotated[bytes, lambda raw: len(raw) in (0, 32)]
"""Digest, or empty if it is unknown or was not computed."""
Incarnation = Annotated[bytes, lambda raw: len(raw) == 16]
Signature = Annotated[bytes, lambda raw: len(raw) == 64]
PeerId = Annotated[str, is_peer_id]
OptionalPeerId = Annotated[str, lambda text: text == "" or is_peer_id(text)]
Count = Annotated[int, lambda number: number <= MAX_COUNT]
Sequences = Annotated[int, lambda number: number <= MAX_SEQUENCES]
LossSum = Annotated[float, lambda number: abs(number) <= MAX_LOSS]
Norm = Annotated[float, lambda number: math.isfinite(number) and number >= 0.0]


@dataclass(frozen=True, order=True, slots=True)
class Voter:
    """Process of a peer. A restarted peer is a new incarnation and has to be voted in."""

    peer_id: PeerId
    incarnation: Incarnation
    """16 random bytes, drawn at process start and never stored."""
    absences: Annotated[int, lambda number: number <= 1000] = field(default=0, compare=False)
    """Consecutive commits without this voter; at 2 it is dropped."""


@dataclass(frozen=True, order=True, slots=True)
class Ballot:
    """Identity of one attempt at a round. Compared by attempt, coordinator, incarnation."""

    attempt: int
    coordinator: PeerId
    incarnation: Incarnation


Voters = Annotated[tuple[Voter, ...], MAX_VOTERS]


@dataclass(frozen=True, slots=True)
class MemberCount:
    """One member's contribution to an average: sequences trained, and their summed loss (nats)."""

    peer_id: PeerId
    incarnation: Incarnation
    sequences: Sequences
    loss_sum: LossSum

    @property
    def voter(self) -> Voter:
        """Process that contributed."""
        return Voter(self.peer_id, self.incarnation)


Contributions = Annotated[tuple[MemberCount, ...], MAX_CONTRIBUTIONS]


@dataclass(frozen=True)
class Value:
    """Decision of one round.

    Values are equal if their digests are equal: a comparison of fields would ignore a voter's
    absences and the sign of a zero.
    """

    parent: Digest
    round: Count
    origin: Ballot
    """Ballot whose exchange produced the result."""
    result_digest: Digest
    """blake3 of the averaged gradient arena."""
    gradient_norm: Norm
    """Global L2 norm of the average. Certified, so that clipping does not depend on rounding."""
    parent_state_digest: OptionalDigest
    """State digest that the members reported at the parent head."""
    contributions: Contributions
    voters_next: Voters
    survivors: Voters = ()
    """Empty if a quorum decides the round; else the peers that open a recorded *branch*."""

    @property
    def sequences(self) -> int:
        """Number of sequences in the round, over all members."""
        return sum(part.sequences for part in self.contributions)

    def given_by(self, voter: "Voter") -> int:
        """Return the sequences that this process of a peer contributed."""
        return sum(part.sequences for part in self.contributions if part.voter == voter)

    @property
    def loss(self) -> float:
        """Mean loss per sequence of the round; nats per token for text."""
        return sum(part.loss_sum for part in self.contributions) / self.sequences

    def __eq__(self, other: object) -> bool:
        return self._digest == other._digest if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._digest)

    def digest(self) -> bytes:
        """Return the digest of all fields."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return canonical_digest("value", self)


@dataclass(frozen=True, slots=True)
class Vote:
    """Signature of one voter, bound to its incarnation by `signed_by`."""

    voter: Voter
    signature: Signature


Votes = Annotated[tuple[Vote, ...], MAX_VOTERS]


@dataclass(frozen=True, slots=True)
class Commit:
    """Decided value with its certificate: votes of a quorum, or of all survivors, at `ballot`.

    Survivors sign only a value that names them, so a head says how it was decided.
    """

    value: Value
    ballot: Ballot
    votes: Votes

    @property
    def survivors(self) -> Voters:
        """Peers that opened a branch with this commit; empty if a quorum decided."""
        return self.value.survivors


@dataclass(frozen=True, slots=True)
class Branch:
    """Round on a chain that was decided without a quorum."""

    round: int
    backing: int
    """Voters of the parent that signed it, by peer id."""
    name: Annotated[bytes, lambda raw: len(raw) == BRANCH_NAME_BYTES]
    """First 8 bytes of the head that the round led to."""


Branches = Annotated[tuple[Branch, ...], MAX_COUNT]
"""Branches of one chain, oldest first."""


Rank = tuple[tuple[int, bool, int, int], ...]


def rank(digest: bytes, number: int, branches: Branches) -> Rank:
    """Return the key by which heads are compared: the greater is preferred. A strict total order.

    Read a chain from genesis as a word with one letter per round: a quorum decided the round, or
    the round opened a branch. Words are compared as in a dictionary. Where two chains part, a
    quorum's round beats a branch. Of two branches, the branch wins that more voters of their parent
    signed, then the lower name. A chain beats its own prefix. Rounds and samples after a branch do
    not count.

    The key shortens runs of rounds that quorums decided to the number of the last such round.
    """
    ends = [(each.round - 1, True, each.backing, -int.from_bytes(each.name)) for each in branches]
    return (*ends, (number, False, 0, -int.from_bytes(digest)))


@dataclass(frozen=True, slots=True)
class ChainRules:
    """Terms of a run that bind every commit of its chain; part of the manifest."""

    global_batch: int = 1
    """Sequences that a round needs at least."""
    last_round: int | None = None
    listed: frozenset[str] = frozenset()
    """Peers that may take part; empty: the run is open to all."""
    trusted: frozenset[str] = frozenset()
    """Peers that have tenure from the start, in addition to the founder and the listed peers."""


@dataclass(frozen=True, slots=True)
class Head:
    """End of a chain: the name of a state, and all that the next round depends on."""

    digest: Digest
    round: int
    """Rounds committed so far; the next commit carries `round + 1`."""
    work: int
    """Sequences in all committed rounds."""
    cursor: int
    """Samples dealt so far (models/data/sampler.py: which sample each member draws next)."""
    voters: Voters
    """Electorate of the next round. The longest tenure comes first: of two voters it decides."""
    members: Annotated[tuple[PeerId, ...], MAX_CONTRIBUTIONS]
    """Peer ids of the last round's contributors, in the order in which samples are dealt."""
    branches: Branches = ()
    """Rounds on this chain that no quorum decided, oldest first."""
    tenures: Tenures = ()
    """Contributions of each peer to recent rounds."""
    rules: ChainRules = ChainRules()
    led_by: OptionalPeerId = ""
    """Coordinator of the last round's exchange; empty before the first round."""

    @property
    def known(self) -> frozenset[str]:
        """Peer ids of the voters, the last round's members, and all peers with tenure.

        Each of these peers has done work for the run, or is trusted by its owner.
        """
        return self.tenured.union(self.members, (voter.peer_id for voter in self.voters))

    @property
    def recent(self) -> frozenset[str]:
        """Peer ids that are counted and waited for: the known peers, and recent contributors."""
        return self.known.union(tenure.peer_id for tenure in self.tenures)

    @property
    def tenured(self) -> frozenset[str]:
        """Peer ids with tenure."""
        return frozenset(self.tenured_since())

    def tenured_since(self) -> Mapping[str, int]:
        """Return the round in which each peer with tenure earned it, by peer id."""
        return {each.peer_id: each.since for each in self.tenures if each.since != NEVER}

    @property
    def rank(self) -> Rank:
        """Rank of the head in fork choice; the head of the highest rank is preferred."""
        return rank(self.digest, self.round, self.branches)

    def prefers(self, other: "Head") -> bool:
        """Return True if fork choice prefers this head to the other one: see `rank`."""
        return self.rank > other.rank

    def after(self, value: Value) -> "Head":
        """Return the head after `value`, without checking that it may follow this head."""
        members = tuple(part.peer_id for part in value.contributions)
        longest = max((part.sequences for part in value.contributions), default=0)
        contributors = {part.peer_id for part in value.contributions if part.sequences}
        digest = canonical_digest(
            "head",
            [self.digest, value.digest(), [(v.peer_id, v.incarnation) for v in value.voters_next]],
        )
        branches = self._branches_after(value, digest)
        decided = value.round - len(branches)
        return Head(
            digest=digest,
            round=value.round,
            work=self.work + value.sequences,
            cursor=self.cursor + max(len(self.members), 1) * longest,
            voters=value.voters_next,
            members=members,
            branches=branches,
            tenures=after_round(self.tenures, value.round, contributors, decided),
            rules=self.rules,
            led_by=value.origin.coordinator,
        )

    def _branches_after(self, value: Value, digest: bytes) -> Branches:
        if not value.survivors:
            return self.branches
        signed = {voter.peer_id for voter in value.survivors}
        backing = sum(voter.peer_id in signed for voter in self.voters)
        return (*self.branches, Branch(value.round, backing, digest[:BRANCH_NAME_BYTES]))


def genesis(
    manifest_digest: bytes,
    state_digest: bytes,
    founder: Voter,
    rules: ChainRules = ChainRules(),
) -> Head:
    """Return the head before any round, fixed by the run's manifest and its initial state.

    Args:
        manifest_digest: Digest of the manifest.
        state_digest: Digest of the state of round 0.
        founder: The only voter of the first round.
        rules: Rules of the run's chain.
    """
    digest = canonical_digest(
        "genesis", [manifest_digest, state_digest, founder.peer_id, founder.incarnation]
    )
    tenures = from_the_start({founder.peer_id} | rules.listed | rules.trusted)
    return Head(digest, 0, 0, 0, (founder,), (founder.peer_id,), tenures=tenures, rules=rules)


def vote_payload(
    parent: bytes, ballot: Ballot, value_digest: bytes, survivors: tuple[Voter, ...] = ()
) -> bytes:
    """Return the bytes that a voter signs to accept a value.

    A vote for a branch is never valid for an ordinary round.

    Args:
        parent: Digest of the head before the round.
        ballot: Ballot of the vote.
        value_digest: Digest of the value.
        survivors: Voters that go on in a branch; empty for an ordinary round.
    """
    return canonical_digest("vote", [parent, ballot, value_digest, survivors])


def standing(voters: Iterable[Voter], salt: bytes = b"") -> list[Voter]:
    """Return the voters in a pseudo-random order that depends on `salt` alone."""
    return sorted(voters, key=lambda v: (blake3(salt + v.peer_id.encode()).digest(), v.incarnation))


def is_quorum(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    """Return True if `present` may decide for `voters`. Present peers without a vote do not count.

    From four voters on, more than (voters + 1) / 2 are needed: any two quorums share two voters, so
    a single liar is never all that they share. Of three voters, two decide, and of two the first: a
    run that small survives one crash instead of one lie, and no rule gives it both.
    """
    if len(voters) == 2:
        return voters[0] in present
    count = sum(voter in present for voter in voters)
    return 2 * count > len(voters) + (len(voters) > 3)


def valid_votes(commit: Commit) -> set[Voter]:
    """Return the voters whose signatures on the commit are valid."""
    payload = vote_payload(
        commit.value.parent, commit.ballot, commit.value.digest(), commit.survivors
    )
    return {vote.voter for vote in commit.votes if signature_holds(VOTE_DOMAIN, vote, payload)}


def signed_by(voter: Voter, payload: bytes) -> bytes:
    """Return the bytes that a process signs: the payload, bound to the process's incarnation.

    So old signatures are worth nothing after a restart.
    """
    return voter.incarnation + payload


def signature_holds(domain: str, vote: Vote, payload: bytes) -> bool:
    """Return True if the voter signed `payload` in `domain` in its present incarnation."""
    return verify(vote.voter.peer_id, domain, signed_by(vote.voter, payload), vote.signature)


def canonical_digest(kind: str, value: Any) -> bytes:
    """Return the blake3 digest (32 bytes) of the canonical JSON of `value`, labelled by `kind`."""
    return blake3(_canonical([kind, _plain(value)]).encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _AS_HEX):
        return value.hex()
    if isinstance(value, _SEQUENCES):
        return [_plain(item) for item in value]
    return {name: _plain(getattr(value, name)) for name in _field_names(value.__class__)}


@lru_cache(maxsize=64)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
