"""One whole step of an optimizer over a store."""

from torch import Tensor

from atom.optim.optimizer import Optimizer
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore
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
