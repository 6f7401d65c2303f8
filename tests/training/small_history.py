"""A run of five rounds that was really trained: its commits, and what they name."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.optim.clipping import gradient_norm
from atom.swap.device import CpuDevice
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain.commit_chain import record_of
from atom.swarm.chain.membership import signed_by
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import arena_digest, state_digest
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.state_sync.donors import Arenas
from tests.manual_clock import ManualClock
from tests.training.small_replica import FIRST_VALUE, RATE, program

ROUNDS = 5
IDENTITIES = [Identity.create() for _ in range(3)]
VOTERS = tuple(sorted(Voter(identity.peer_id, b"i" * 16) for identity in IDENTITIES))
SIGNERS = {identity.peer_id: identity for identity in IDENTITIES}
FOUNDER = VOTERS[0]
STRANGER = Identity.create()


def new_replica() -> Replica:
    return Replica(program(), None, ReplicaSettings(RATE), CpuDevice(), ManualClock())


def initialise(replica: Replica) -> None:
    replica.initialise(FIRST_VALUE)


def copied(replica: Replica) -> Arenas:
    return {name: arena.clone() for name, arena in replica.state_arenas().items()}


@dataclass
class Run:
    """Commits, heads (one more), states by round and results by digest."""

    heads: list[Head]
    commits: list[Commit] = field(default_factory=list)
    states: list[Arenas] = field(default_factory=list)
    results: dict[bytes, Tensor] = field(default_factory=dict)

    def digest(self, round_number: int) -> bytes:
        return state_digest(self.states[round_number])

    def chain(self, length: int = ROUNDS) -> bytes:
        return chain_bytes(self.commits[:length])


def chain_bytes(commits: Sequence[Commit]) -> bytes:
    return b"".join(map(record_of, commits))


def signed(
    head: Head, value: Value, forger: Identity | None = None, by: slice = slice(2)
) -> Commit:
    """A commit with the votes of all survivors, or of a bare quorum: the founder alone at first,
    then two of three."""
    ballot = value.origin
    payload = vote_payload(head.digest, ballot, value.digest(), value.survivors)
    votes = tuple(
        Vote(
            voter,
            (forger or SIGNERS[voter.peer_id]).sign(VOTE_DOMAIN, signed_by(voter, payload)),
        )
        for voter in value.survivors or head.voters[by]
    )
    return Commit(value, ballot, votes)


def value_on(head: Head, result: bytes, norm: float, state: bytes, sequences: int = 8) -> Value:
    return Value(
        parent=head.digest,
        round=head.round + 1,
        origin=Ballot(1, FOUNDER.peer_id, FOUNDER.incarnation),
        result_digest=result,
        gradient_norm=norm,
        parent_state_digest=state,
        contributions=(Contribution(FOUNDER.peer_id, FOUNDER.incarnation, sequences, 3.0),),
        voters_next=VOTERS,
    )


@functools.cache
def run() -> Run:
    replica = new_replica()
    initialise(replica)
    generator = torch.Generator().manual_seed(1)
    start = genesis(b"m" * 32, state_digest(replica.state_arenas()), FOUNDER)
    made = Run([start], states=[copied(replica)])
    for number in range(1, ROUNDS + 1):
        head = made.heads[-1]
        result = torch.randn(replica.gradients.numel(), generator=generator)
        name, norm = arena_digest(result), gradient_norm(result)
        commit = signed(head, value_on(head, name, norm, made.digest(number - 1)))
        replica.apply(result, norm, number)
        made.commits.append(commit)
        made.heads.append(head.after(commit.value))
        made.results[name] = result
        made.states.append(copied(replica))
    return made
