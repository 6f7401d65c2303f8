"""A store for an optimizer, one whole step over it, and a step that a test leads part by part."""

import itertools
import threading
from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer, Part, StepTerms, optimizer_state
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore, StateForm
from tests.manual_clock import ManualClock


def take_step(
    optimizer: Optimizer,
    store: HostStore,
    gradient: Tensor,
    learning_rate: float,
    step: int,
    coefficient: float = 1.0,
) -> None:
    """Raises: ValueError for a gradient that does not fit; StepFailed."""
    stepper = Stepper(store, optimizer, ManualClock())
    stepper.begin(gradient, learning_rate, step, coefficient)
    stepper.wait()


def allocate_store(
    optimizer: Optimizer,
    layout: ParameterLayout,
    precision: torch.dtype = torch.float32,
    form: StateForm = StateForm.EXACT,
    **named: Any,
) -> HostStore:
    state = optimizer_state(optimizer, layout, form)
    return HostStore.allocate(layout, precision, form=form, optimizer_state=state, **named)


class SteeredAdamW(AdamW):
    """Updates a part for every permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.failing_at: int | None = None
        """The part that fails, once."""
        self._updates = itertools.count()

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        assert self.permits.acquire(timeout=20.0)
        if next(self._updates) == self.failing_at:
            raise MemoryError("no room")
        super().update(part, gradient, step)
