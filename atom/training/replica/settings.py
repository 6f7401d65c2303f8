"""What a replica is told about the run and about this box."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.state_form import StateForm
from atom.training.replica.update_rule import EveryStep, UpdateRule

MAX_MICRO_BATCHES_PER_PASS = 8


@dataclass(frozen=True)
class ReplicaSettings:
    rate: RateSettings
    optimizer: Optimizer = field(default_factory=AdamW)
    clip_norm: float | None = None
    precision: torch.dtype = torch.float32
    arrangement: Arrangement = field(default_factory=Arrangement)
    """How the training program uses the device, and the evaluation program if it is cut alike."""
    micro_batches: int = MAX_MICRO_BATCHES_PER_PASS
    """The most that a pass may accumulate: device memory has been reckoned for as many."""
    dropout_seed: int = 0
    """Should differ from peer to peer. Says nothing about the initial weights."""
    state_form: StateForm = StateForm.EXACT
    gradients: torch.dtype = torch.float32
    """In which numbers they leave the device and are summed: float32, or bfloat16."""
    update_rule: Callable[..., UpdateRule] = EveryStep
    """What a round averages, and what follows from it: an `UpdateRule`'s class, or that with its
    options."""
