"""Small replicas on the device, and a few rounds of one peer."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import torch

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.adamw import AdamW
from atom.swap.device import Device
from atom.swap.schedule import Arrangement
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.gpu.conftest import ON_A_GPU
from tests.training.small_replica import RATE

WIDTH, TOKENS, ROUNDS = (64, 32, 4) if ON_A_GPU else (16, 8, 3)
CONFIG = GPT3Config(4, 2, WIDTH, TOKENS, 61, dropout=0.1)
EVERY = frozenset(range(CONFIG.layers + 2))


def batches(seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {n: torch.randint(61, (2, TOKENS), generator=generator) for n in ("tokens", "targets")}
        for _ in range(2)
    ]


def settings_of(changes: dict[str, torch.dtype], arrangement: Arrangement) -> ReplicaSettings:
    return ReplicaSettings(
        rate=RATE,
        optimizer=AdamW(seed=3),
        clip_norm=0.5,
        micro_batches=2,
        arrangement=arrangement,
        **changes,
    )


def new_replica(
    device: Device,
    changes: dict[str, torch.dtype],
    arrangement: Arrangement | None = None,
    dropout: float = CONFIG.dropout,
    beside: Sequence[Device] = (),
) -> Replica:
    settings = settings_of(changes, arrangement or Arrangement())
    program = program_in(settings.precision, dropout)
    replica = Replica(program, None, settings, device, extra_devices=beside)
    replica.initialise(functools.partial(initial_value, CONFIG, seed=5))
    return replica


@functools.cache
def program_in(precision: torch.dtype, dropout: float = CONFIG.dropout) -> Program:
    config = dataclasses.replace(CONFIG, dropout=dropout)
    return compile_program(GPT3(config, dtype=precision), batches(0)[0])


def train(
    replica: Replica, between: Callable[[Replica, int], None] = lambda replica, n: None
) -> list[float]:
    """Rounds of two passes each; a step is left under way. `between`: before every pass."""
    losses, numbers = [], itertools.count()
    for _ in range(ROUNDS):
        replica.reset_gradients()
        for _ in range(2):
            number = next(numbers)
            between(replica, number)
            replica.run_pass(batches(number))
            losses.append(replica.loss_sum)
        replica.begin_own_step()
    replica.finish_step()
    return losses
