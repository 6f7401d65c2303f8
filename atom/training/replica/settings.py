"""Settings of a replica, from the run file and for this machine."""

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
    """Settings of a replica: update rule, precision, and use of the device."""

    rate: RateSettings
    optimizer: Optimizer = field(default_factory=AdamW)
    clip_norm: float | None = None
    precision: torch.dtype = torch.float32
    arrangement: Arrangement = field(default_factory=Arrangement)
    """Use of the device by the training program, and by an evaluation program with the same cut."""
    micro_batches: int = MAX_MICRO_BATCHES_PER_PASS
    """Largest number of micro-batches in a pass; device memory is planned for this number."""
    dropout_seed: int = 0
    """Seed of dropout; it should differ between peers. The initial weights do not depend on it."""
    state_form: StateForm = StateForm.EXACT
    gradients: torch.dtype = torch.float32
    """Dtype of gradients in the copy to the host and in the host sums: float32 or bfloat16."""
    update_rule: Callable[..., UpdateRule] = EveryStep
    """Constructor of the update rule: an `UpdateRule` subclass, or a partial with its options."""
