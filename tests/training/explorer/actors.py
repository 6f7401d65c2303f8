"""Peers, heads, results and leases that the explorer hands to the machines.

Peers are numbered by the order that breaks ties: number 0 is the tie-breaker of every electorate
that it belongs to. A restarted peer has the same number and the next life.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atom.swarm.chain import commit as chain_commit
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    ChainRules,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    canonical_digest,
    signed_by,
    vote_payload,
)
from atom.swarm.chain.messages import Promise, Ring
from atom.swarm.chain.succession import next_voters
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round.events import Frozen, View
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundPatience, RoundTerms

NAMES = "ABCDE"
BATCH = 4
LAST_ROUND = 1000
TICK_S, LONG_S = 1.0, 5.0
"""Seconds by which a machine's clock moves before a tick: longer than each patience below; and
longer than a promise waits for its exchange."""
PATIENCE = RoundPatience(
    prevote=0.5, promise=0.5, testimony=0.5, quiet=0.5, rank=0.0, holding=0.5, behind=0.0,
    standstill=1000.0, retry=0.0, grace=12.0,
)  # fmt: skip
"""Short enough that every timer has expired at a tick, and no penalty (20 s) has. No leader is
ignored for calling too often: a call may be as late as it likes."""

chain_commit.verify = functools.lru_cache(1 << 16)(chain_commit.verify)
"""Real signatures. The search asks about the same one again and again."""


def _identity(number: int) -> Identity:
    seed = blake3(f"explorer {number}".encode()).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


IDENTITIES = sorted(map(_identity, range(len(NAMES))), key=lambda one: one.peer_id)
NUMBERS = {one.peer_id: number for number, one in enumerate(IDENTITIES)}


class _NoJitter:
    """Stand-in for the machine's random numbers: the smallest pause, the first few onlookers."""

    def random(self) -> float:
        return 0.0

    def sample(self, population: list[str], k: int) -> list[str]:
        return population[:k]


NO_JITTER = _NoJitter()


@functools.cache
def voter(number: int, life: int = 0) -> Voter:
    return Voter(IDENTITIES[number].peer_id, bytes([life]) * 16)


@functools.lru_cache(1 << 16)
def sign(number: int, domain: str, payload: bytes) -> bytes:
    return IDENTITIES[number].sign(domain, payload)


# ---- heads and machines


@dataclass(frozen=True, eq=False)
class Place:
    """A head that a peer reached, with the certificates that lead to it. Heads make it equal."""

    head: Head
    state_digest: bytes
    commits: tuple[Commit, ...] = ()
    heads: tuple[Head, ...] = ()
    """Earlier heads of its chain, oldest first."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and other.head.digest == self.head.digest

    def __hash__(self) -> int:
        return hash(self.head.digest)


def first_place(voters: int) -> Place:
    """Return the head at which all begin: an ordinary round that had all of them as members."""
    electorate = tuple(sorted(voter(number) for number in range(voters)))
    members = tuple(each.peer_id for each in electorate)
    rules = ChainRules(BATCH, LAST_ROUND, trusted=frozenset(members))
    tenures = from_the_start(members)
    name = canonical_digest("explorer", members)  # places are equal if their heads' names are
    head = Head(name, 0, 64, 64, electorate, members, tenures=tenures, rules=rules)
    return Place(head, b"s" * 32)


@functools.lru_cache(1 << 14)
def place_after(place: Place, commit: Commit) -> Place:
    value = commit.value
    state = canonical_digest("state", [place.state_digest, value.result_digest])
    commits, heads = (*place.commits, commit), (*place.heads, place.head)
    return Place(place.head.after(value), state, commits, heads)


def forks_of(place: Place, ours: Place) -> tuple[Head, ...]:
    """Return the heads from which branches depart on the way to a place, beyond our own chain."""
    chain, known = (*place.heads, place.head), (*ours.heads, ours.head)
    steps = zip(place.commits, chain, chain[1:], strict=False)
    return tuple(head for commit, head, after in steps if commit.survivors and after not in known)


def new_machine(number: int, life: int, place: Place, branches: bool) -> RoundMachine:
    terms = RoundTerms(BATCH, LAST_ROUND, branches, PATIENCE)
    signer = functools.partial(sign, number)
    args = voter(number, life), place.head, place.state_digest, terms, signer, 0.0
    machine = RoundMachine(*args)
    machine._context.jitter = NO_JITTER  # type: ignore[assignment]
    return machine


# ---- counts and results


def offered(number: int, ballot: Ballot) -> Frozen:
    """Return a peer's frozen count: another one for each attempt, so old counts show. Each peer
    brings more than all before it, so that a branch can have more samples than a quorum's round."""
    count = BATCH * 3**number + ballot.attempt % 16
    return Frozen(ballot, count, float(count))


@functools.lru_cache(1 << 14)
def mean_of(ballot: Ballot, members: tuple[MemberCount, ...]) -> tuple[bytes, float]:
    """Return digest and norm of the average that these members make."""
    digest = canonical_digest("mean", [ballot, members])
    return digest, norm_of(digest)


def norm_of(digest: bytes) -> float:
    """Return the norm of the numbers that have this digest."""
    return 1.0 + digest[0]


def lease(who: Voter, head: Head, sequences: int = BATCH) -> Lease:
    return Lease(
        who.peer_id, who.incarnation, 1, 0.0, PeerState.ACCUMULATING, head.digest, head.round,
        sequences, 1.0, 1.0, 0.0, None, b"", (), branches=head.branches,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sight(View):
    """A view that equals only itself: each is made once."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@functools.cache
def sight(head: Head, seen: frozenset[Voter], dead: frozenset[Voter], silent: bool) -> Sight:
    """Return a view of these peers at our head. `silent`: the others have been for very long."""
    fresh = {who.peer_id: lease(who, head) for who in sorted(seen)}
    lapsed = {who: 1e6 for who in head.voters if silent and who.peer_id not in fresh}
    return Sight(fresh, lapsed, dead, sequences=BATCH)


@functools.cache
def claim(other: Head, who: Voter) -> Sight:
    """Return a view of one peer that shows another head."""
    return Sight({who.peer_id: lease(who, other)})


# ---- values and certificates that a liar makes


def value_of(
    place: Place,
    ballot: Ballot,
    members: tuple[MemberCount, ...],
    promises: Mapping[Voter, Promise],
) -> Value:
    """Return the value of an exchange of these members.

    Args:
        promises: answers to this ballot, of some of the members or of all.
    """
    result, norm = mean_of(ballot, members)
    there = {member.voter for member in members}
    idle = {who for who, p in promises.items() if not p.sequences and who not in there}
    leaving = {who.peer_id for who in there | idle if who in promises and promises[who].leaving}
    return Value(
        parent=place.head.digest,
        round=place.head.round + 1,
        origin=ballot,
        result_digest=result,
        gradient_norm=norm,
        parent_state_digest=place.state_digest,
        contributions=members,
        voters_next=next_voters(place.head, (), members, idle, leaving, ballot.coordinator),
    )


def averaged(place: Place, ring: Ring) -> Value:
    """Return the value of an exchange that was called for."""
    named = place.head.digest, place.head.round + 1, ring.ballot
    mean = mean_of(ring.ballot, ring.members)
    return Value(*named, *mean, place.state_digest, ring.members, ring.voters_next)


def vote_of(number: int, value: Value, ballot: Ballot, life: int = 0) -> Vote:
    who = voter(number, life)
    payload = vote_payload(value.parent, ballot, value.digest(), value.survivors)
    return Vote(who, sign(number, VOTE_DOMAIN, signed_by(who, payload)))
