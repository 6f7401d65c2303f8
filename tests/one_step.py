"""A store for an optimizer, and one whole step over it."""

from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from tests.manual_clock import ManualClock


def take_step(
    optimizer: Optimizer,
    store: HostStore,
    gradient: Tensor,
    learning_rate: float,
    step: int,
    coefficient: float = 1.0,
    frozen: frozenset[str] = frozenset(),
) -> None:
    """Raises: ValueError for a gradient that does not fit; StepFailed."""
    stepper = Stepper(store, optimizer, ManualClock(), frozen=frozen)
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
