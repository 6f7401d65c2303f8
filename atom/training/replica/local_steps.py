"""Local steps: a peer takes optimizer steps of its own, and a round averages how far they led.

From the shared weights θ of the last round each peer takes *inner* steps on its own samples. A
round averages Δ = θ − its weights, weighted by sequences, and the *outer* rule makes the next θ:

    m ← μ · m + mean Δ
    θ ← θ − rate · (mean Δ + μ · m)          gradient descent with Nesterov's momentum

as DiLoCo does (Douillard et al. 2023, arXiv 2311.08105). Shared are θ and m. The weights that
passes use and the inner optimizer's state are a peer's own.

What a peer has done stays with it until a round has taken it. After a commit its weights are

    θ_new + s · (weights − θ_old)

where s is the share of its sequences that the mean left out: 0 if all were in it, 1 if it had no
part.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.gradients import GradientArena
from atom.optim.optimizer import Part, StepTerms
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore, weights_of
from atom.swap.state_form import HIGH, LOW, MASTER, StateArena
from atom.training.replica.update_rule import UpdateRule

OUTER_MOMENTUM = "outer_momentum"
WEIGHTS = frozenset({MASTER, HIGH, LOW})
WAY, STEPS = "way", "steps"
"""Beside the optimizer's own, in what is saved: Δ, and how many inner steps were taken."""
WARM_UP_STEPS = 10
"""Inner steps of a peer that comes later: its optimizer's state is empty, others' is not."""


class LocalSteps(UpdateRule):
    """See the module, and docs/local-steps.md for owners."""

    same_steps: ClassVar[bool] = False

    def __init__(
        self,
        store: HostStore,
        gradients: GradientArena,
        stepper: Stepper,
        rate: RateSettings,
        clip_norm: float | None,
        *,
        inner_sequences: int,
        outer_rate: float,
        outer_momentum: float,
    ) -> None:
        """`inner_sequences`: of an inner step. The inner rate is the one of the round under way.
        Raises: MemoryError."""
        super().__init__(store, gradients, stepper, rate, clip_norm)
        self._inner_sequences = inner_sequences
        self._outer_rate, self._outer_decay = outer_rate, outer_momentum
        elements = store.layout.total_elements
        self._theta, self._momentum, self._offer = (
            allocate_host_memory(elements, torch.float32) for _ in range(3)
        )
        self._offered = 0
        """So many times Δ are in `_offer` now. What else is in it is owed to earlier rounds: the
        exchange adds there what its codec took away."""
        self._round = self._inner_steps = self._warm_up_steps = 0

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        layout = next(iter(arenas.values())).layout  # the weights', in whatever form they are
        arena = StateArena(torch.float32, layout)
        return {MASTER: arena, OUTER_MOMENTUM: arena}

    @classmethod
    def own_bytes(cls, layout: ParameterLayout) -> int:
        return 3 * torch.float32.itemsize * layout.total_elements

    def shared(self) -> Mapping[str, Tensor]:
        return {MASTER: self._theta, OUTER_MOMENTUM: self._momentum}

    # ---- where state comes from

    def initialised(self) -> None:
        for name, theta in self._by_name(self._theta).items():
            theta.copy_(self.store.weights(name))
        self._momentum.zero_()
        self._forget(0)

    def adopted(self, round: int) -> None:
        self._begin_at_theta(round)

    def dropped(self) -> None:
        self._begin_at_theta(self._round)

    def _begin_at_theta(self, round: int) -> None:
        self.store.clear_state()
        for name, theta in self._by_name(self._theta).items():
            self.store.write_weights(name, theta)
        self.store.changed()
        self._forget(round)

    def _forget(self, round: int) -> None:
        """Nothing is owed to anybody, and the inner optimizer knows nothing."""
        self._offer.zero_()
        self._offered = self._inner_steps = 0
        self._round, self._warm_up_steps = round, WARM_UP_STEPS if round else 0

    def _by_name(self, arena: Tensor) -> dict[str, Tensor]:
        layout = self.store.layout
        return {spec.name: layout.view(arena, spec.name) for spec in layout.specs}

    # ---- the peer's own, for its next start

    @classmethod
    def saved_bytes(cls, arenas: Mapping[str, StateArena]) -> int:
        moments = sum(each.size_bytes for name, each in arenas.items() if name not in WEIGHTS)
        return moments + cls.shared_arenas(arenas)[MASTER].size_bytes

    def own(self) -> Mapping[str, Tensor]:
        """The inner optimizer's state, its steps, and Δ if there is any."""
        own = self._moments() | {STEPS: torch.tensor([self._inner_steps])}
        way = torch.zeros_like(self._theta)
        for part in self.stepper.parts:
            torch.sub(part.of(self._theta), weights_of(part.stored), out=part.of(way))
        return own | {WAY: way} if way.any() else own

    def adopt_own(self, saved: Mapping[str, Tensor], is_here: bool) -> None:
        moments = self._moments()
        wanted = {WAY: self._theta} if WAY in saved else {}
        for name, arena in (moments | wanted | {STEPS: torch.zeros(1).long()}).items():
            given = saved.get(name)
            if given is None or (given.shape, given.dtype) != (arena.shape, arena.dtype):
                raise ValueError(f"the {name} of this peer's own is missing or does not fit")
        for name, arena in moments.items():
            arena.copy_(saved[name])
        self._inner_steps, self._warm_up_steps = int(saved[STEPS]), 0
        if is_here and WAY in saved:
            for name, value in self._by_name(self._theta - saved[WAY]).items():
                self.store.write_weights(name, value)
            self.store.changed()

    def _moments(self) -> dict[str, Tensor]:
        return {name: arena for name, arena in self.store.state.items() if name not in WEIGHTS}

    # ---- inner steps

    @property
    def until_step(self) -> int:
        return max(self._inner_sequences - self.gradients.unspent, 1)

    def pass_ended(self) -> None:
        if self.gradients.unspent >= self._inner_sequences:
            self._inner_step()

    def _inner_step(self) -> None:
        """On all gradients at hand; fewer than an inner step wants lower its rate by as much. A
        gradient that is not finite is passed over."""
        self._take_back_offer()
        gradients = self.gradients
        sums, sequences = gradients.sums, gradients.unspent
        norm = gradient_norm(sums) / sequences
        gradients.spend()
        if not math.isfinite(norm):
            return
        self._inner_steps += 1
        size = min(1.0, sequences / self._inner_sequences)
        warm = min(1.0, self._inner_steps / (self._warm_up_steps + 1))
        rate = learning_rate(self.rate, self._round + 1) * size * warm
        clip = clip_coefficient(norm, self.clip_norm)
        self.stepper.begin(sums, rate, self._inner_steps, clip / sequences)

    # ---- rounds

    def contribution(self) -> Tensor:
        if self.gradients.unspent:
            self._inner_step()
        self.stepper.wait()
        if not self._offered:
            self._offered = self.gradients.sequences
            self._add_progress(self._offered)
        return self._offer

    def _take_back_offer(self) -> None:
        """Before the weights move: afterwards nobody can tell Δ from what is owed."""
        self.stepper.wait()
        if self._offered:
            self._add_progress(-self._offered)
            self._offered = 0

    def _add_progress(self, times: int) -> None:
        for part in self.stepper.parts:
            progress = part.of(self._theta) - weights_of(part.stored)
            part.of(self._offer).add_(progress, alpha=times)

    def commit(self, mean: Tensor, norm: float, round: int, ours: int) -> None:
        if not math.isfinite(norm):
            raise ValueError(f"the mean's norm is {norm}")
        counted = self.gradients.sequences
        if self.gradients.unspent:
            self._inner_step()
        if not ours:
            self._take_back_offer()
        left_out = 1.0 - ours / max(counted, ours, 1)
        step = partial(self._outer_step, left_out)
        self.stepper.begin(mean, self._outer_rate, round, update=step)
        self._offered, self._round = 0, round

    def _outer_step(self, left_out: float, part: Part, mean: Tensor, step: StepTerms) -> None:
        """Only single operations that IEEE 754 rounds alike everywhere: θ and m are shared."""
        theta, momentum = part.of(self._theta), part.of(self._momentum)
        momentum.mul_(self._outer_decay).add_(mean)
        change = torch.mul(momentum, self._outer_decay).add_(mean).mul_(step.learning_rate)
        with part.weights() as weights:
            kept = (weights - theta).mul_(left_out) if left_out else None
            theta.sub_(change)
            weights.copy_(theta)
            if kept is not None:
                weights.add_(kept)
        if left_out < 1.0:
            part.of(self._offer).zero_()
