"""A GPT of two blocks in a replica, its micro-batches, and whole rounds of one peer."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

SEED, SEQUENCES, SEQUENCE_TOKENS, VOCABULARY = 11, 2, 8, 29
RATE = RateSettings(1e-2, 1e-3, warmup_rounds=2, decay="cosine", rounds=10)

MicroBatch = dict[str, Tensor]
Cut = tuple[tuple[int, int], ...]


def config(dropout: float = 0.0, blocks: int = 2) -> GPT3Config:
    return GPT3Config(blocks, 2, 16, SEQUENCE_TOKENS, VOCABULARY, dropout)


FIRST_VALUE = functools.partial(initial_value, config(), seed=SEED)


def batches(count: int, seed: int) -> list[MicroBatch]:
    generator = torch.Generator().manual_seed(seed)
    shape = (SEQUENCES, SEQUENCE_TOKENS)
    return [
        {n: torch.randint(VOCABULARY, shape, generator=generator) for n in ("tokens", "targets")}
        for _ in range(count)
    ]


@functools.cache
def program(
    dropout: float = 0.0,
    precision: torch.dtype = torch.float32,
    cut: Cut | None = None,
    blocks: int = 2,
) -> Program:
    """`cut`: first and last layer of each sub-model, of two more than blocks; None: all apart."""
    graph = trace(GPT3(config(dropout, blocks), dtype=precision), batches(1, 0)[0])
    finest = layer_ends(layers_of(graph))
    return build_program(graph, ends=None if cut is None else [finest[last] for _, last in cut])


def filled(
    device: CpuDevice, program: Program, evaluation: Program | None = None, **settings: Any
) -> Replica:
    """`settings`: of `ReplicaSettings`. Its weights are the first values of `SEED`."""
    made = ReplicaSettings(**{"rate": RATE, **settings})
    replica = Replica(program, evaluation, made, device, ManualClock())
    replica.initialise(FIRST_VALUE)
    return replica


def apply(replica: Replica, mean: Tensor, round: int) -> None:
    """The whole step that leads to `round`."""
    replica.begin_step(mean, gradient_norm(mean), round)
    replica.finish_step()


def contributed(replica: Replica) -> Tensor:
    """All that it gives to a round, at once."""
    return replica.contribution().part(0, replica.elements)


def step_once(replica: Replica, micro_batches: Sequence[MicroBatch], round: int) -> Tensor:
    """A round of this peer alone; its mean gradient."""
    replica.reset_gradients()
    replica.run_pass(micro_batches)
    mean = replica.gradient_sums() / replica.sequences
    apply(replica, mean, round)
    return mean


def same(one: Replica, other: Replica) -> bool:
    """Return True if the states are bit-identical."""
    return state_digest(one.state_arenas()) == state_digest(other.state_arenas())
