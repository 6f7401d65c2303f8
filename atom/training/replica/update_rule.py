"""Update rules: contribution of a replica to a round, and effect of the decided mean on it.

A round averages the contributions of its peers, weighted by the sequences that each peer counted.
An update rule defines the contribution and the use of the mean. `EveryStep` is synchronous
training: peers average gradients, and each takes one optimizer step. Another rule may take
optimizer steps after every pass and average weights from time to time. `docs/contributor.md` shows
how to add a rule.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import clip_coefficient
from atom.optim.gradients import FlatNumbers, GradientArena
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore, StateArena
from atom.swap.host_sums import add
from atom.swarm.exchange.contribution import Contribution, Sums


@dataclass(eq=False)
class UpdateRule(ABC):
    """Base class of update rules; each replica has one instance.

    The constructor of a rule also gets the keys of [update] in the run file, by keyword.

    Methods are called on the replica's thread while no step is under way, unless a method says
    otherwise.

    State is either *shared* or a peer's *own*. Shared state depends only on the initial values and
    the committed results: heads and digests refer to it, and peers save and fetch it. Own state
    never leaves the peer.
    """

    same_steps: ClassVar[bool] = True
    """True if all peers take the same optimizer steps, with the same bits, on the shared state."""
    overlaps: ClassVar[bool] = False
    """True if passes continue while a contribution is averaged.

    Sequences that no round has taken then count for the next round: `commit` tells `gradients`
    which ones were taken.
    """

    store: HostStore
    """Weights that passes use, and the optimizer's state."""
    gradients: GradientArena
    """Gradient sums over sequences, with the count of sequences."""
    stepper: Stepper
    """Thread that takes optimizer steps on `store` in the background."""
    rate: RateSettings
    clip_norm: float | None
    """Largest gradient norm; None: gradients are not clipped."""
    keeps_lost: bool = False
    """True if the run's codec loses so much that the loss must be added to a later contribution."""

    def optimizer_step(
        self, gradient: FlatNumbers, norm: float, number: int, sequences: int = 1
    ) -> None:
        """Begin an optimizer step in the background.

        Args:
            gradient: Mean gradient [elements], or gradient sums over `sequences`; the step divides
                them.
            norm: L2 norm of the mean gradient.
            number: Number of the step; the learning rate depends on it.
            sequences: Divisor of `gradient`; 1 for a mean.

        Raises:
            ValueError: The norm is not finite or the gradient does not fit; nothing is changed.
            StepFailed: The step before failed.
        """
        coefficient = clip_coefficient(norm, self.clip_norm) / sequences
        self.stepper.begin(gradient, learning_rate(self.rate, number), number, coefficient)

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        """Return dtype and layout of each tensor in `shared`, by name.

        Args:
            arenas: All arenas of the replica's store; by default all of them are shared.
        """
        return arenas

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        """Return the bytes of host memory that the rule needs in addition to the replica's."""
        return 0

    def shared(self) -> Mapping[str, Tensor]:
        """Return the shared state: flat live tensors, as `shared_arenas` declares them."""
        return self.store.state

    @classmethod
    def saved_bytes(cls, arenas: Mapping[str, StateArena]) -> int:
        """Return the bytes that `own` takes on disk, for a replica with these `arenas`."""
        return 0

    def own(self) -> Mapping[str, Tensor]:
        """Return own state that is saved for this peer's next start: live tensors or copies."""
        return {}

    def adopt_own(self, saved: Mapping[str, Tensor], at_same_state: bool) -> None:  # noqa: B027
        """Restore own state that `own` returned in an earlier process of this peer.

        Args:
            saved: The saved tensors.
            at_same_state: True if the shared state was the same then as now. Otherwise only state
                that does not depend on the shared state is restored.

        Raises:
            ValueError: A tensor is missing or does not fit; nothing is changed.
        """

    def initialised(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """Set the shared state from the initial weights, which were just written."""

    def adopted(self, round: int) -> None:  # noqa: B027 - a rule may have nothing to do
        """Adapt weights and own state after `shared` was filled with the state of `round`."""

    def dropped(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """Reset own state, because the contribution was not finite and no peer receives it."""

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Wrap validation: within it, passes use the weights that all peers share.

        No training pass runs within it. If the rule `overlaps`, no other thread reads `shared`
        within it.
        """
        yield

    @property
    def until_step(self) -> int | None:
        """Number of sequences that the next pass can use before a step; None: no limit."""
        return None

    def pass_ended(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """React to a pass that was just counted; the last round's step may still be under way."""

    @abstractmethod
    def contribution(self) -> Contribution:
        """Return the values to average, multiplied by the counted sequences.

        They are for the round after that of the last `commit` or `adopted`, at first for round 1.
        It is called between two passes. The values stay the same until the next pass or, if the
        rule `overlaps`, until the next call of this method or of `commit`, except that an exchange
        may subtract what its codec lost.
        """

    @abstractmethod
    def commit(
        self, mean: FlatNumbers, norm: float, round: int, ours: int, knows_lost: bool
    ) -> None:
        """Apply the mean that the swarm decided.

        The method may return before the step is finished; `stepper.wait` waits for it.

        Args:
            mean: Mean contribution per sequence [elements]. The rule reads it until `stepper.wait`
                returns.
            norm: L2 norm of `mean`.
            round: Round that the mean leads to; the first round is 1.
            ours: Number of this peer's sequences in the mean, without sequences counted since.
            knows_lost: True if the mean is from the latest exchange that used a contribution of
                this peer. Then the mean lacks what `Contribution.lacks` reported, and the rule adds
                it to a later contribution.

        Raises:
            ValueError: An argument does not fit; nothing is changed.
        """


class EveryStep(UpdateRule):
    """Synchronous training: one optimizer step with the mean gradient of the round's sequences."""

    def __init__(self, *given: Any, keeps_lost: bool = False, **options: float) -> None:
        """Allocate memory for error feedback, if the codec needs it. Raises: MemoryError."""
        super().__init__(*given)
        self.keeps_lost = keeps_lost
        self._lost: Tensor | None = None
        """Values that the codec lost from the latest contribution, for error feedback.

        See Seide et al. 2014 ("1-bit stochastic gradient descent") and Karimireddy et al. 2019.
        Without error feedback a codec of few bits would lose the same small numbers in every round.
        """
        if self.keeps_lost:
            self._lost = allocate_host_memory(self.store.layout.trained_elements, torch.float32)
        self._owes = False
        """True if the lost values must be added to the next contribution."""

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        return torch.float32.itemsize * layout.trained_elements if keeps_lost else 0

    def adopted(self, round: int) -> None:
        self._owes = False

    def contribution(self) -> Contribution:
        sums = self.gradients.sums
        if self._lost is not None and self._owes:
            add(sums, self._lost)
            self.gradients.changed()
        self._owes = False
        return Sums(sums, self._lost)

    def commit(
        self, mean: FlatNumbers, norm: float, round: int, ours: int, knows_lost: bool
    ) -> None:
        self.optimizer_step(mean, norm, round)
        self.gradients.reset()  # these gradients belong to the previous weights
        self._owes = self._owes or knows_lost
