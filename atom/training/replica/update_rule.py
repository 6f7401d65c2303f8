"""What a round means to a replica: what it contributes, and what the decided average does to it.

The round averages the contributions of its peers, weighted by the sequences that each has counted.
An update rule says what they are and what follows from the mean. `EveryStep` is synchronous
training: gradients in, one optimizer step out. A rule may as well step by itself after every pass
and average weights now and then. `docs/contributor.md` shows how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import clip_coefficient
from atom.optim.gradients import FlatNumbers, GradientArena
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore
from atom.swap.host_sums import add
from atom.swap.state_form import StateArena
from atom.swarm.exchange.contribution import Contribution, Sums


class UpdateRule(ABC):
    """One for each replica. Methods are called on the replica's thread, no step being under way
    unless said otherwise.

    State is *shared* or a peer's *own*. Shared state is a function of the initial values and of the
    committed results alone: it is what heads name, what digests cover, and what is saved and
    fetched. Own state never leaves the peer.
    """

    same_steps: ClassVar[bool] = True
    """Shared state follows from the optimizer's steps: they have the same bits on all peers."""
    overlaps: ClassVar[bool] = False
    """Passes go on while a contribution is averaged, and what no round has taken counts for the
    next: `commit` tells `gradients` what was taken."""

    def __init__(
        self,
        store: HostStore,
        gradients: GradientArena,
        stepper: Stepper,
        rate: RateSettings,
        clip_norm: float | None,
        keeps_lost: bool = False,
        **options: float,
    ) -> None:
        """`store`: the weights that passes use, and the optimizer's state. `gradients`: sums over
        sequences, with their count. `stepper` takes optimizer steps on `store`, in the background.
        `keeps_lost`: the run's codec takes away so much that it has to be given back.
        `options`: the other keys of the run file's [update]; a rule takes what it needs.
        """
        self.store = store
        self.gradients = gradients
        self.stepper = stepper
        self.rate = rate
        self.clip_norm = clip_norm
        self.keeps_lost = keeps_lost

    def optimizer_step(
        self, gradient: FlatNumbers, norm: float, number: int, sequences: int = 1
    ) -> None:
        """Starts optimizer step `number` on a mean of that `norm`. `gradient`: the mean, or its sum
        over so many `sequences`, which is divided on its way into the step.

        Raises: ValueError for a norm that is not finite or a gradient that does not fit; then
        nothing is changed. StepFailed when the step before broke off.
        """
        coefficient = clip_coefficient(norm, self.clip_norm) / sequences
        self.stepper.begin(gradient, learning_rate(self.rate, number), number, coefficient)

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        """Of all `arenas` of a replica, those that the shared state consists of, by the names that
        `shared` has. All of them, unless a rule says otherwise."""
        return arenas

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        """Host memory that the rule takes beside the replica's."""
        return 0

    def shared(self) -> Mapping[str, Tensor]:
        """The shared state: flat, live, as `shared_arenas` declares it."""
        return self.store.state

    @classmethod
    def saved_bytes(cls, arenas: Mapping[str, StateArena]) -> int:
        """What `own` takes on disk, of a replica with these `arenas`."""
        return 0

    def own(self) -> Mapping[str, Tensor]:
        """Own state that is worth a file of its own, for this peer's next start; copies or live."""
        return {}

    def adopt_own(self, saved: Mapping[str, Tensor], is_here: bool) -> None:  # noqa: B027
        """Goes on from what `own` gave in an earlier process. `is_here`: at the shared state that
        is held now. Raises: ValueError if it does not fit; then nothing is changed."""

    def initialised(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """The weights have their first values: shared state is to follow from them."""

    def adopted(self, round: int) -> None:  # noqa: B027 - a rule may have nothing to do
        """`shared` was filled from outside, as of `round`: weights and own state are to follow."""

    def dropped(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """The contribution was not finite, and nobody gets it: own state is to begin anew."""

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Within it the weights that passes use are those that all peers share: for validation.
        No pass that trains runs; if the rule `overlaps`, nobody reads `shared` meanwhile."""
        yield

    @property
    def until_step(self) -> int | None:
        """How many sequences are of use to the next pass; None: as many as it takes."""
        return None

    def pass_ended(self) -> None:  # noqa: B027 - a rule may have nothing to do
        """A pass was counted; the step of the round before may still be under way."""

    @abstractmethod
    def contribution(self) -> Contribution:
        """What is averaged, times the sequences counted. Between two passes; until the next pass,
        or if the rule `overlaps` until the next call or commit, it says the same, but for what an
        exchange takes away of it."""

    @abstractmethod
    def commit(
        self, mean: FlatNumbers, norm: float, round: int, ours: int, knows_lost: bool
    ) -> None:
        """Takes over what the swarm decided; may return before all is done, `stepper.wait` waits.

        Args:
            mean: [elements], the mean contribution per sequence. It belongs to the rule until
                `stepper.wait` has returned.
            norm: the L2 norm of `mean`.
            round: the round that it leads to; the first is 1.
            ours: how many of this peer's sequences are in it; what has been counted since is not.
            knows_lost: it is of the latest exchange that a contribution went into: what that was
                told to lack is lacking in the mean. A rule sees to it that it is in a later one.

        Raises: ValueError for what does not fit; then nothing is changed.
        """


class EveryStep(UpdateRule):
    """Synchronous training: the mean gradient of the round's sequences, and one optimizer step."""

    def __init__(self, *given: Any, **options: Any) -> None:
        """Raises: MemoryError."""
        super().__init__(*given, **options)
        self._lost: Tensor | None = None
        """What the codec took away: error feedback (Seide et al. 2014, "1-bit stochastic gradient
        descent"; Karimireddy et al. 2019). Without it a codec of few bits would lose the same small
        numbers round after round."""
        if self.keeps_lost:
            self._lost = allocate_host_memory(self.store.layout.trained_elements, torch.float32)
        self._owes = False
        """Whether that is to be added to the next contribution."""

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
        self.gradients.reset(self.gradients.tag)  # they were the weights' of before
        self._owes = self._owes or knows_lost
