"""A run of five rounds that was really trained: its commits, and the data that they name."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atom.optim.clipping import gradient_norm
from atom.swap.device import CpuDevice
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import record_of
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock
from tests.swarm.chain_samples import a_commit, beginning, voter_of
from tests.swarm.means import encoded
from tests.training.small_replica import FIRST_VALUE, RATE, program

ROUNDS = 5
PEERS = sorted((Identity.create() for _ in range(3)), key=lambda each: each.peer_id)
FOUNDER = PEERS[0]


def new_replica() -> Replica:
    return Replica(program(), None, ReplicaSettings(rate=RATE), CpuDevice(), ManualClock())


def initialise(replica: Replica) -> None:
    replica.initialise(FIRST_VALUE)


@dataclass
class Run:
    """Commits, heads (one more), states by round and results by round (none for the first)."""

    heads: list[Head]
    commits: list[Commit] = field(default_factory=list)
    states: list[Mapping[str, Tensor]] = field(default_factory=list)
    results: list[EncodedMean] = field(default_factory=lambda: [encoded(torch.empty(0))])

    def digest(self, round_number: int) -> bytes:
        return state_digest(self.states[round_number])

    def result_digest(self, round_number: int) -> bytes:
        return state_digest(self.results[round_number].arenas)

    def chain(self, length: int = ROUNDS) -> bytes:
        return chain_bytes(self.commits[:length])

    def branch(self, parent: int, **changes: Any) -> Commit:
        """Return a branch that the founder opened alone at the head of that round."""
        changes = {"parent_state_digest": self.digest(parent), **changes}
        return a_commit(self.heads[parent], {FOUNDER: 1}, [FOUNDER], survivors=[FOUNDER], **changes)


def chain_bytes(commits: Sequence[Commit]) -> bytes:
    return b"".join(map(record_of, commits))


@functools.cache
def run() -> Run:
    """Return a run of three voters; two of them, a bare quorum, decide each round."""
    replica = new_replica()
    initialise(replica)
    generator = torch.Generator().manual_seed(1)
    first = beginning(FOUNDER, state_digest(replica.state_arenas()), trusted=PEERS)
    made = Run([replace(first, voters=tuple(map(voter_of, PEERS)))])
    given = {FOUNDER: 8, **dict.fromkeys(PEERS[1:], 0)}
    for number in range(1, ROUNDS + 1):
        made.states.append(copied(replica))
        result = torch.randn(replica.elements, generator=generator)
        norm, travelled = gradient_norm(result), encoded(result)
        digest = state_digest(travelled.arenas)
        changes = {"result_digest": digest, "parent_state_digest": made.digest(number - 1)}
        commit = a_commit(made.heads[-1], given, PEERS[:2], gradient_norm=norm, **changes)
        replica.begin_step(result, norm, number)
        replica.finish_step()
        made.commits.append(commit)
        made.heads.append(made.heads[-1].after(commit.value))
        made.results.append(travelled)
    made.states.append(copied(replica))
    return made


def copied(replica: Replica) -> Mapping[str, Tensor]:
    return {name: arena.clone() for name, arena in replica.state_arenas().items()}
