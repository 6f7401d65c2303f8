"""Rules for the value that may follow a head: its counts, its voters, and its evidence. Pure.

`follows` is the one definition of a valid successor. Voting, live commits, the journal and catch-up
all use it, so no peer can apply a commit that another peer, or its own restart, would reject. It
needs only the chain.

A voter asks for more than a reader of the chain, because its vote is what makes a commit valid. The
coordinator that proposes a value sends *evidence* with it: the members' signed promises, and
signatures of a quorum that vouches for the value at one ballot. One lying coordinator therefore
cannot invent counts, drop voters, or name a result that no exchange produced. A voter that was
absent from the exchange can check the value as well as a voter that took part.

A voter vouches for at most one value per ballot (`Participant._vouch`), so from four voters on at
most one value per ballot has evidence, even if one voter lies: two quorums share an honest voter.
"""

import math
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated

from atom.base.errors import Reason
from atom.swarm.chain.commit import (
    MAX_VOTERS,
    Ballot,
    Commit,
    Head,
    MemberCount,
    PeerId,
    Signature,
    Value,
    Vote,
    Voter,
    Votes,
    canonical_digest,
    is_quorum,
    signature_holds,
    standing,
    valid_votes,
)
from atom.swarm.chain.tenure import NEVER

PROMISE_DOMAIN = "promise"
"""Signature domain of a promise: over `promise_payload(...)`."""
VOUCH_DOMAIN = "vouch"
"""Signature domain of a voter that vouches for a value: over `vouch_payload(...)`."""
ABSENCES_TO_DROP = 2
MAX_SIGNATURES = 512
"""Members of one exchange at most: the evidence for their value has to fit into a message."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Signatures behind a value, for the voters that are asked to accept it."""

    promises: Annotated[tuple[Signature, ...], MAX_SIGNATURES] = ()
    """Signature of each contributor under its promise, in the order of the contributions."""
    idle: Votes = ()
    """Signatures of voters that promised and had nothing to contribute."""
    leaving: Annotated[tuple[PeerId, ...], MAX_SIGNATURES] = ()
    """Peers, of either kind, that promised and said that they leave."""
    vouched: Votes = ()
    """Signatures of voters that have the result and vouch for the value at one ballot."""


def promise_payload(
    parent: bytes, ballot: Ballot, sequences: int, loss_sum: float, state: bytes, leaving: bool
) -> bytes:
    """Return the bytes that a peer signs when it promises `sequences` to a ballot.

    Args:
        parent: Digest of the head that the work was done for.
        ballot: Ballot that the peer promises to.
        sequences: Sequences that it offers.
        loss_sum: Summed loss over them (nats).
        state: Digest of its state at the parent.
        leaving: Whether the peer leaves after this round.
    """
    return canonical_digest("promise", [parent, ballot, sequences, loss_sum, state, int(leaving)])


def vouch_payload(parent: bytes, ballot: Ballot, value_digest: bytes) -> bytes:
    """Return the bytes that a voter signs to vouch for a value at a ballot."""
    return canonical_digest("vouch", [parent, ballot, value_digest])


# ---- the next electorate


def next_voters(
    head: Head,
    survivors: Collection[Voter],
    contributions: Collection[MemberCount],
    idle: AbstractSet[Voter],
    leaving: AbstractSet[str],
    coordinator: str,
) -> tuple[Voter, ...]:
    """Return the electorate after a round.

    A voter stays unless it leaves, or has been absent from two commits in a row, or has no tenure
    while other voters have. Commits in a row by one coordinator count as one absence, so that no
    coordinator can shrink the electorate by leaving voters out. A restarted voter votes again once
    a commit names its new incarnation. At most one peer joins per round: it has tenure,
    contributed, and comes first in an order that depends on the head, so no peer can choose an id
    that is always first. The longest tenure is listed first: of two voters, the first decides. If
    no voter would remain, all stay on the list, and the peers that go on open a branch.

    Args:
        head: Head that the round follows.
        survivors: Peers that open a branch with this round; empty if a quorum decides it.
        contributions: Members of the round's exchange.
        idle: Voters that promised and had nothing to contribute.
        leaving: Peer ids that leave after this round.
        coordinator: Peer id of the coordinator of the round's exchange.
    """
    since = head.tenured_since()
    electors: Collection[Voter] = survivors or head.voters
    voters: list[Voter] = [*idle, *(member.voter for member in contributions), *survivors]
    present = {voter.peer_id: Voter(voter.peer_id, voter.incarnation) for voter in voters}
    again = coordinator == head.led_by
    absent = [
        replace(v, absences=max(v.absences + (not again), 1))
        for v in electors
        if v.peer_id not in present
    ]
    stay = [present[v.peer_id] for v in electors if v.peer_id in present]
    stay += [voter for voter in absent if voter.absences < ABSENCES_TO_DROP]
    stay = [voter for voter in stay if voter.peer_id in since] or stay
    chosen = [voter for voter in stay if voter.peer_id not in leaving]
    if not survivors and len(chosen) < MAX_VOTERS:
        able = since.keys() - {voter.peer_id for voter in electors} - leaving
        candidates = [m.voter for m in contributions if m.sequences and m.peer_id in able]
        chosen += standing(candidates, head.digest)[:1]
    return tuple(sorted(chosen or stay, key=lambda v: (since.get(v.peer_id, NEVER), v.peer_id)))


def _implied_voters(head: Head, value: Value) -> tuple[Voter, ...]:
    """Return the electorate after `value`, as far as a reader of the chain can check it.

    The reader does not know which peers have left and which were present. It assumes that each peer
    missing from `voters_next` has left, and that each voter kept there without absences was
    present.
    """
    stay = {voter.peer_id for voter in value.voters_next}
    electors = value.survivors or head.voters
    idle = {voter for voter in value.voters_next if voter in electors and voter.absences == 0}
    peers = {voter.peer_id for voter in electors} | {part.peer_id for part in value.contributions}
    return _next_voters_of(head, value, idle, peers - stay)


def _next_voters_of(
    head: Head, value: Value, idle: AbstractSet[Voter], leaving: AbstractSet[str]
) -> tuple[Voter, ...]:
    contributions, coordinator = value.contributions, value.origin.coordinator
    return next_voters(head, value.survivors, contributions, idle, leaving, coordinator)


def _listed(voters: Iterable[Voter]) -> list[tuple[Voter, int]]:
    """Return the voters with their absences, which the equality of voters ignores."""
    return [(voter, voter.absences) for voter in voters]


# ---- the chain


def follows(head: Head, value: Value) -> Reason | None:
    """Return why `value` may not follow `head`; None if it may. Signatures are not checked here.

    Returns:
        WRONG_HEAD: another parent or round number, or a round after the run's last.
        BAD_WEIGHT: fewer sequences than the global batch, a peer that is counted twice or is not on
            the run's list, or a norm that is not a number.
        NOT_A_VOTER: an electorate that the rules do not allow, or a coordinator or survivors that
            do not belong to the run.
    """
    rules, peers = head.rules, [part.peer_id for part in value.contributions]
    last = rules.last_round
    if value.parent != head.digest or value.round != head.round + 1:
        return Reason.WRONG_HEAD
    if last is not None and value.round > last:
        return Reason.WRONG_HEAD
    if value.sequences < max(rules.global_batch, 1) or len(set(peers)) < len(peers):
        return Reason.BAD_WEIGHT
    if rules.listed and not rules.listed.issuperset(peers):
        return Reason.BAD_WEIGHT
    if not (math.isfinite(value.gradient_norm) and value.gradient_norm >= 0):
        return Reason.BAD_WEIGHT
    coordinator = Voter(value.origin.coordinator, value.origin.incarnation)
    survivors = {voter.peer_id for voter in value.survivors}
    strange = len(survivors) < len(value.survivors) or not survivors <= head.known
    if strange or coordinator not in (*head.voters, *value.survivors):
        return Reason.NOT_A_VOTER
    implied = _implied_voters(head, value)
    return None if _listed(implied) == _listed(value.voters_next) else Reason.NOT_A_VOTER


def commit_problem(head: Head, commit: Commit) -> Reason | None:
    """Return why `commit` does not bind a replica at `head`; None if it does.

    Returns:
        BAD_CERTIFICATE if neither a quorum of the voters nor all survivors signed it; else as
        `follows`.
    """
    if (problem := follows(head, commit.value)) is not None:
        return problem
    signed, survivors = valid_votes(commit), set(commit.survivors)
    complete = signed >= survivors if survivors else is_quorum(head.voters, signed)
    return None if complete else Reason.BAD_CERTIFICATE


# ---- the vote


def unsupported(head: Head, value: Value, evidence: Evidence, ballot: Ballot) -> Reason | None:
    """Return why the evidence does not support a value; None if it does.

    The value must be allowed by `follows`.

    Args:
        head: Head that the value follows.
        value: Value to check.
        evidence: Signatures behind it.
        ballot: Ballot at which a quorum is to have vouched for the value.

    Returns:
        BAD_SIGNATURE: a promise is not signed by the peer that it names. NOT_A_VOTER: the promises
        lead to another electorate than the value names. DIGEST_MISMATCH: no quorum vouched for the
        value, with its result and norm.
    """
    if len(evidence.promises) != len(value.contributions):
        return Reason.BAD_SIGNATURE
    leaving, idle = set(evidence.leaving), {vote.voter for vote in evidence.idle}
    if len(leaving) < len(evidence.leaving):
        return Reason.NOT_A_VOTER
    votes = [Vote(m.voter, s) for m, s in zip(value.contributions, evidence.promises, strict=True)]
    work = [(member.sequences, member.loss_sum) for member in value.contributions]
    pairs = [*zip(votes, work, strict=True), *((vote, (0, 0.0)) for vote in evidence.idle)]
    for vote, (sequences, loss_sum) in pairs:
        payload = promise_payload(
            value.parent,
            value.origin,
            sequences,
            loss_sum,
            value.parent_state_digest,
            vote.voter.peer_id in leaving,
        )
        if not signature_holds(PROMISE_DOMAIN, vote, payload):
            return Reason.BAD_SIGNATURE
    strangers = idle.difference(head.voters, value.survivors)
    if strangers or not leaving <= {vote.voter.peer_id for vote, _ in pairs}:
        return Reason.NOT_A_VOTER
    due = _next_voters_of(head, value, idle, leaving)
    if _listed(due) != _listed(value.voters_next):
        return Reason.NOT_A_VOTER
    plain = replace(value, survivors=())
    plain = replace(plain, voters_next=_next_voters_of(head, plain, idle, leaving))
    by_quorum = is_quorum(head.voters, vouchers(plain, evidence, ballot))
    by_all = 0 < len(value.survivors) == len(vouchers(value, evidence, ballot) & {*value.survivors})
    return None if by_quorum or by_all else Reason.DIGEST_MISMATCH


def vouchers(value: Value, evidence: Evidence, ballot: Ballot) -> set[Voter]:
    """Return the voters whose signatures vouch for the value at `ballot`."""
    payload = vouch_payload(value.parent, ballot, value.digest())
    return {vote.voter for vote in evidence.vouched if signature_holds(VOUCH_DOMAIN, vote, payload)}
