"""A replica whose optimizer's state is in parts: which of them it holds, and what is done with them
beside the replica's own steps. Knows no peers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from atom.optim.optimizer import Optimizer
from atom.optim.stepper import Stepper
from atom.swap.held_state import HeldState
from atom.swap.host_store import HostStore
from atom.training.replica.update_rule import UpdateRule

if TYPE_CHECKING:  # an exchange needs more than PyTorch; a replica does not
    from atom.swarm.exchange.codec import Codec
    from atom.swarm.exchange.encoded import EncodedMean
    from atom.training.replica.parts_step import PartsStep


class ReplicaParts:
    """Used as the replica is; who changes what is held does so while no step is under way."""

    def __init__(
        self, optimizer: Optimizer, store: HostStore, rule: UpdateRule, stepper: Stepper
    ) -> None:
        assert store.held is not None
        self.held: HeldState = store.held
        self._optimizer, self._store, self._rule, self._stepper = optimizer, store, rule, stepper

    def step(
        self, codec: "Codec", number: int, keep: "Callable[[Mapping[bytes, EncodedMean]], None]"
    ) -> "PartsStep":
        """Of an exchange that leads to the round of that number. It reads the state while it is
        used: no step is under way meanwhile. `keep`: as in `PartsStep`. Raises: StepFailed."""
        from atom.training.replica.parts_step import PartsStep

        self._stepper.wait()
        terms, store = self._rule.terms, self._store
        return PartsStep(self._optimizer, store, codec, lambda norm: terms(norm, number), keep)

    def state(self, part: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """What is loaded of a part, and what is held of it: flat, live. Waits for the end of a
        step. Raises: StepFailed."""
        self._stepper.wait()
        arenas = self._store.arenas_of(part)
        return arenas.pop(self._store.loaded), arenas

    def hold_all(self) -> None:
        """Zeros where it was not held. Raises: MemoryError."""
        for part in range(self.held.parts.count):
            self.held.hold(part)

    def renew(self, part: int) -> None:
        """Holds a part from now on, as it is where it begins anew. Raises: MemoryError."""
        self.held.take(part, self._store.renewed(part))
