"""The chain of commits: what a round decided, who vouches for it, and the name of the result; and
who may decide a round, how many are enough, and who decides the next one. Pure.

A replica's state is named by its *head*: a digest that covers every commit since genesis. Equal
heads mean equal bytes. Everything here is a frozen value; digests are taken over canonical JSON
(sorted keys, floats as hexadecimal), so they do not depend on a library's wire encoding.

The voters of a round are fixed by the previous commit, never by anybody's view of who is alive:
two views of "alive" make two majorities. A quorum is more than half of the voters, or exactly half
with the tie-breaker among them (dynamic-linear voting), so any two quorums share a voter.
"""

import json
import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Annotated, Any

from blake3 import blake3

from atom.base.reasons import Reason
from atom.swarm.identity import is_peer_id, verify

VOTE_DOMAIN = "vote"
"""Signature domain of a vote: over `vote_payload(...)`."""

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_AS_IT_IS = (str, int, type(None))
_IN_HEX = (bytes, float)
_IN_ORDER = (list, tuple)

MAX_VOTERS = 9
"""More voters make a round slower, not safer; further members contribute without voting."""
MAX_CONTRIBUTIONS = 4096
MAX_SEQUENCES = 2**24
"""One peer's part in one round: as much as the largest global batch a run file may ask for."""
MAX_LOSS = 1e15
"""Sum over a peer's sequences, nats: any sum of them stays finite."""
MAX_COUNT = 2**40
"""Bound of rounds and serials: none is reached in a lifetime."""
BRANCH_NAME_BYTES = 8

Digest = Annotated[bytes, lambda raw: len(raw) == 32]
OptionalDigest = Annotated[bytes, lambda raw: len(raw) in (0, 32)]
"""Empty: not known, or not computed."""
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
    """One process of one peer. A restart is a new incarnation, a voter only once voted in."""

    peer_id: PeerId
    incarnation: Incarnation
    """16 random bytes, drawn at process start and never stored."""
    absences: Annotated[int, lambda number: number <= 1000] = field(default=0, compare=False)
    """Consecutive commits this voter had no part in; at 2 it is dropped."""


@dataclass(frozen=True, order=True, slots=True)
class Ballot:
    """Orders attempts on one round. Compared by attempt, then coordinator, then incarnation."""

    attempt: int
    coordinator: PeerId
    incarnation: Incarnation


Voters = Annotated[tuple[Voter, ...], MAX_VOTERS]


@dataclass(frozen=True, slots=True)
class MemberCount:
    """One member's part in the average: `sequences` trained, summed loss over them (nats)."""

    peer_id: PeerId
    incarnation: Incarnation
    sequences: Sequences
    loss_sum: LossSum


Contributions = Annotated[tuple[MemberCount, ...], MAX_CONTRIBUTIONS]


@dataclass(frozen=True)
class Value:
    """What one round decides. Two are the same if their digests are: not every field that is in it
    tells voters apart, and two zeros of different sign are equal."""

    parent: Digest
    round: Count
    origin: Ballot
    result_digest: Digest
    """blake3 of the averaged gradient arena."""
    gradient_norm: Norm
    """Global L2 norm of that average, certified so that nobody's rounding decides the clipping."""
    parent_state_digest: OptionalDigest
    """State digest the members reported at the parent head."""
    contributions: Contributions
    voters_next: Voters
    survivors: Voters = ()
    """Empty in an ordinary round. Else this commit opens a recorded *branch* by these peers."""

    @property
    def sequences(self) -> int:
        return sum(part.sequences for part in self.contributions)

    def given_by(self, voter: "Voter") -> int:
        """Sequences that are this peer's, in the process that it is now."""
        return sum(
            part.sequences
            for part in self.contributions
            if (part.peer_id, part.incarnation) == (voter.peer_id, voter.incarnation)
        )

    @property
    def loss(self) -> float:
        """Mean loss per sequence over everything this round averaged; of text, nats per token."""
        return sum(part.loss_sum for part in self.contributions) / self.sequences

    def __eq__(self, other: object) -> bool:
        return self._digest == other._digest if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._digest)

    def digest(self) -> bytes:
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return canonical_digest("value", self)


@dataclass(frozen=True, slots=True)
class Vote:
    """A voter's signature over `vote_payload(parent, ballot, value digest)`."""

    voter: Voter
    signature: Signature


Votes = Annotated[tuple[Vote, ...], MAX_VOTERS]


@dataclass(frozen=True, slots=True)
class Commit:
    """A decided value with its certificate: votes of a quorum (or of all survivors) at `ballot`.

    Survivors sign only a value that names them: so a head itself says how it was decided.
    """

    value: Value
    ballot: Ballot
    votes: Votes

    @property
    def survivors(self) -> Voters:
        """Empty: a quorum of the parent's voters vouches. Else all of these, after the grace
        time."""
        return self.value.survivors


@dataclass(frozen=True, slots=True)
class Branch:
    """A round on a chain that was decided without a quorum."""

    round: int
    backing: int
    """How many voters of the parent signed it, by peer id: nobody can sign for others."""
    name: Annotated[bytes, lambda raw: len(raw) == BRANCH_NAME_BYTES]
    """The first 8 bytes of the head that it made."""


Branches = Annotated[tuple[Branch, ...], MAX_COUNT]
"""The branches of one chain, oldest first."""


Rank = tuple[tuple[int, bool, int, int], ...]


def rank(digest: bytes, number: int, branches: Branches) -> Rank:
    """What heads are compared by: the greater is preferred. A strict total order.

    A chain is read from genesis on as a word with a letter for each round: a quorum of the voters
    decided the round, or it opened a branch. Words are compared as in a dictionary. Where two
    chains part, a quorum's round comes before a branch; of two branches, the one that more of
    their parent's voters signed, then the lower name. A chain that goes on comes before the one
    that it continues. What follows a branch does not count: neither rounds nor samples.

    Here, a run of rounds that quorums decided is the number of its last, with what follows it.
    """
    ends = [(each.round - 1, True, each.backing, -int.from_bytes(each.name)) for each in branches]
    return (*ends, (number, False, 0, -int.from_bytes(digest)))


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: the name of a state, and what the next round needs to know."""

    digest: Digest
    round: int
    """Rounds committed so far; the next commit carries `round + 1`."""
    work: int
    """Sequences in all committed rounds, as the chain tells it."""
    cursor: int
    """Samples allotted so far (see models/data: which sample each member draws next)."""
    voters: Voters
    members: Annotated[tuple[PeerId, ...], MAX_CONTRIBUTIONS]
    """Peer ids of the last round's contributors, in ring order; draws are dealt in this order."""
    branches: Branches = ()
    """The rounds on this chain that no quorum decided, oldest first."""

    @property
    def known(self) -> frozenset[str]:
        """Peer ids of its voters and of its round's members: nobody is among them for free."""
        return frozenset(self.members).union(voter.peer_id for voter in self.voters)

    @property
    def rank(self) -> Rank:
        return rank(self.digest, self.round, self.branches)

    def prefers(self, other: "Head") -> bool:
        """Fork choice: see `rank`."""
        return self.rank > other.rank

    def after(self, value: Value) -> "Head":
        """The head once `value` is committed on this one. Does not check the certificate."""
        members = tuple(part.peer_id for part in value.contributions)
        longest = max((part.sequences for part in value.contributions), default=0)
        digest = canonical_digest(
            "head",
            [self.digest, value.digest(), [(v.peer_id, v.incarnation) for v in value.voters_next]],
        )
        return Head(
            digest=digest,
            round=value.round,
            work=self.work + value.sequences,
            cursor=self.cursor + max(len(self.members), 1) * longest,
            voters=value.voters_next,
            members=members,
            branches=self._branches_after(value, digest),
        )

    def _branches_after(self, value: Value, digest: bytes) -> Branches:
        if not value.survivors:
            return self.branches
        signed = {voter.peer_id for voter in value.survivors}
        backing = sum(voter.peer_id in signed for voter in self.voters)
        return (*self.branches, Branch(value.round, backing, digest[:BRANCH_NAME_BYTES]))


def genesis(manifest_digest: bytes, state_digest: bytes, founder: Voter) -> Head:
    """The head before any round: fixed by the run manifest and the seeded initial state."""
    digest = canonical_digest(
        "genesis", [manifest_digest, state_digest, founder.peer_id, founder.incarnation]
    )
    return Head(digest, 0, 0, 0, (founder,), (founder.peer_id,))


def vote_payload(
    parent: bytes, ballot: Ballot, value_digest: bytes, survivors: tuple[Voter, ...] = ()
) -> bytes:
    """The bytes a voter signs to accept a value: a branch vote never passes for an ordinary one."""
    return canonical_digest("vote", [parent, ballot, value_digest, survivors])


def standing(voters: Iterable[Voter], salt: bytes = b"") -> list[Voter]:
    """The voters in the order that `salt` deals: who coordinates first, who breaks ties."""
    return sorted(voters, key=lambda v: (blake3(salt + v.peer_id.encode()).digest(), v.incarnation))


def is_quorum(voters: Sequence[Voter], present: AbstractSet[Voter]) -> bool:
    """Whether `present` may decide for `voters`. Present non-voters do not count."""
    count = sum(voter in present for voter in voters)
    if 2 * count == len(voters) and count > 0:
        return standing(voters)[0] in present
    return 2 * count > len(voters)


def voters_next(
    voters: Sequence[Voter],
    contributors: Sequence[Voter],
    leaving: AbstractSet[str],
    dead: AbstractSet[Voter],
    idle: AbstractSet[Voter] = frozenset(),
) -> tuple[Voter, ...]:
    """The electorate after a commit. `idle`: these promised, and had nothing to give.

    A voter goes when it says goodbye, is confirmed dead, or neither had a part nor was idle in two
    commits running; a lapsed lease alone removes nobody. Newcomers enter at most half as many as
    there are voters at a time, so that a crowd of new peers cannot outvote the run in one round.
    The last peers to leave stay voters on paper: their successors open a recorded branch.
    """
    present = {*contributors, *idle}
    renewed = {voter.peer_id: voter.incarnation for voter in contributors}
    kept = [
        Voter(v.peer_id, v.incarnation, 0 if v in present else v.absences + 1)
        for v in voters
        if v.peer_id not in leaving
        and v not in dead
        and renewed.get(v.peer_id, v.incarnation) == v.incarnation
        and (v in present or v.absences < 1)
    ]
    room = min(max(1, len(voters) // 2), MAX_VOTERS - len(kept))
    candidates = [v for v in contributors if v not in kept and v.peer_id not in leaving]
    newcomers = [Voter(v.peer_id, v.incarnation) for v in standing(candidates)[: max(room, 0)]]
    chosen = kept + newcomers or [Voter(v.peer_id, v.incarnation) for v in contributors]
    return tuple(sorted(chosen)[:MAX_VOTERS])


def certificate_problem(head: Head, commit: Commit) -> Reason | None:
    """Why `commit` does not bind a replica at `head`; None if it does.

    A branch needs somebody who belongs to the run: a voter of the head or a member of its round,
    by peer id, since all may have been restarted. Strangers alone found no branch.
    """
    signed = valid_votes(commit)
    if commit.survivors:
        complete = len(commit.survivors) <= MAX_VOTERS and signed >= set(commit.survivors)
        ours = any(voter.peer_id in head.known for voter in commit.survivors)
        return None if complete and ours else Reason.BAD_CERTIFICATE
    return None if is_quorum(head.voters, signed) else Reason.BAD_CERTIFICATE


def valid_votes(commit: Commit) -> set[Voter]:
    """Whose signatures are under it."""
    payload = vote_payload(
        commit.value.parent, commit.ballot, commit.value.digest(), commit.survivors
    )
    return {vote.voter for vote in commit.votes if voted(vote.voter, payload, vote.signature)}


def signed_by(voter: Voter, payload: bytes) -> bytes:
    """What a voter signs: bound to the incarnation, so old votes stay with the old process."""
    return voter.incarnation + payload


def voted(voter: Voter, payload: bytes, signature: bytes) -> bool:
    """Whether it signed the vote that `vote_payload` made."""
    return verify(voter.peer_id, VOTE_DOMAIN, signed_by(voter, payload), signature)


def canonical_digest(kind: str, value: Any) -> bytes:
    """blake3 (32 bytes) of the canonical JSON of `value`, labelled by `kind`."""
    return blake3(_canonical([kind, _plain(value)]).encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, _IN_HEX):
        return value.hex()
    if isinstance(value, _IN_ORDER):
        return [_plain(item) for item in value]
    return {name: _plain(getattr(value, name)) for name in _field_names(value.__class__)}


@lru_cache(maxsize=64)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
