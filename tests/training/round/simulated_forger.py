"""A peer that makes up a chain: a branch that it alone opens, and rounds that never were."""

from simulated_peer import Process
from simulated_seat import Chain

from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Value,
    Vote,
    canonical_digest,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by
from atom.swarm.chain.messages import CommitNotice
from atom.training.round import RoundMachine

ABSURD = 10**9
"""Sequences in each round it makes up."""


def forge(process: Process, rounds: int = 5) -> Chain:
    """From here on this peer goes on alone, at the end of a branch from its head, and claims it."""
    chain = process.chain
    for number in range(rounds):
        chain = _longer(process, chain, opens=number == 0)
    process.chain = chain
    process.machine = RoundMachine(
        process.me,
        chain.head,
        chain.state,
        process.swarm.terms,
        process.seat.identity.sign,
        process.now(),
    )
    process.gradients.works.clear()
    process.gradients.head = chain.head.digest
    for other in process.swarm.living:
        for commit in chain.commits[-rounds:]:
            other.receive(process.me, CommitNotice(commit))
    return chain


def _longer(process: Process, chain: Chain, opens: bool) -> Chain:
    me, head = process.me, chain.head
    survivors = (me,) if opens else ()
    ballot = Ballot(1, me.peer_id, me.incarnation)
    digest = canonical_digest("forged", [head.digest])
    part = Contribution(me.peer_id, me.incarnation, ABSURD, 1.0)
    value = Value(
        head.digest, head.round + 1, ballot, digest, 1.0, chain.state, (part,), (me,), survivors
    )
    payload = vote_payload(head.digest, ballot, value.digest(), survivors)
    vote = Vote(me, process.seat.identity.sign(VOTE_DOMAIN, signed_by(me, payload)))
    commit = Commit(value, ballot, (vote,))
    process.swarm.witness.sees_commit(commit)
    state = canonical_digest("forged state", [digest])
    return Chain(
        (*chain.heads, head.after(value)),
        (*chain.states, state),
        (*chain.commits, commit),
        chain.works,
    )
