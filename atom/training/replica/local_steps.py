"""Local steps: a peer takes optimizer steps of its own, and a round averages how far they led.

From the shared weights θ of the last round each peer takes *inner* steps on its own samples. A
round averages Δ = θ − its weights, weighted by sequences, and the *outer* rule makes the next θ:

    m ← μ · m + mean Δ
    θ ← θ − rate · (mean Δ + μ · m)          gradient descent with Nesterov's momentum

as DiLoCo does (Douillard et al. 2023, arXiv 2311.08105). Shared are θ, in float32, and m, rounded
to bfloat16 once it was used. The weights that passes use and the inner optimizer's state are a
peer's own.

Inner steps go on while a round is decided. What a peer has by then is its offer: Δ, of which only
what was sent is left once it has been. What it has done stays with it until a round has taken it.
After a commit its weights are

    θ_new + (weights − θ_old) + Δ    if the round took its latest offer
    θ_new + s · (weights − θ_old)    else: s is the share of its sequences that no round has

So what is not sent stays in its weights, and is in its next Δ: what a codec takes away of it, and,
if the codec takes much, what rounding to bfloat16 does, in which Δ then is.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import numpy
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.gradients import FlatNumbers, GradientArena
from atom.optim.optimizer import Part, StepTerms
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore, weights_of
from atom.swap.state_form import MASTER, WEIGHTS, StateArena, round_to_bfloat16
from atom.swarm.exchange.contribution import Contribution, all_finite
from atom.training.replica.update_rule import UpdateRule

OUTER_MOMENTUM = "outer_momentum"
STEPS, COUNT = "steps", "count"
"""Beside the store's own, in what is saved: how many inner steps were taken, and of how many
sequences the weights have made use that no round has, with the sum of their losses."""
SHARED_DTYPES = {MASTER: torch.float32, OUTER_MOMENTUM: torch.bfloat16}
"""Of θ and m."""
WARM_UP_STEPS = 10
"""Inner steps of a peer that comes later: its optimizer's state is empty, others' is not."""


class _Offer(Contribution):
    """n · Δ. What an exchange takes away of it is taken from Δ: offered again, it is what was sent,
    so whichever of several attempts is committed, Δ says what others have."""

    def __init__(self, way: Tensor, sequences: int, keeps_lost: bool) -> None:
        """`way`: Δ."""
        self.keeps_lost, self.sequences = keeps_lost, sequences
        self._way = way

    def part(self, start: int, stop: int) -> Tensor:
        way = self._way[start:stop].float().numpy()
        return torch.from_numpy(numpy.multiply(way, numpy.float32(self.sequences)))

    def lacks(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        """A sum's loss moves weights no further than those of a peer with the average count: the
        next round may count more of a peer that had few."""
        rest, share = lost.numpy(), numpy.float32(1.0 / max(self.sequences, sequences))
        numpy.multiply(rest, share, out=rest)
        self._way[start : start + lost.numel()].sub_(lost)

    def is_finite(self) -> bool:
        return all_finite(self._way)


class LocalSteps(UpdateRule):
    """See the module, and docs/local-steps.md for owners."""

    same_steps: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        store: HostStore,
        gradients: GradientArena,
        stepper: Stepper,
        rate: RateSettings,
        clip_norm: float | None,
        keeps_lost: bool = False,
        *,
        inner_sequences: int,
        outer_rate: float,
        outer_momentum: float,
    ) -> None:
        """`inner_sequences`: of an inner step. The inner rate is the one of the round under way.
        Raises: MemoryError."""
        assert store.on_device is None, "weights are moved on the host"
        super().__init__(store, gradients, stepper, rate, clip_norm, keeps_lost)
        self._inner_sequences = inner_sequences
        self._outer_rate, self._outer_decay = outer_rate, outer_momentum
        elements = store.layout.trained_elements
        self._theta, self._momentum, self._way = (
            allocate_host_memory(elements, dtype)
            for dtype in (*SHARED_DTYPES.values(), _offer_dtype(keeps_lost))
        )
        self._offer: _Offer | None = None
        """Of `_way`, Δ, which means nothing if it is None."""
        self._apart = False
        """Whether weights may differ from θ though nothing is counted."""
        self._offered_loss_sum = 0.0
        self._round = self._inner_steps = self._warm_up_steps = 0

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        layout = next(iter(arenas.values())).layout  # the weights', in whatever form they are
        return {name: StateArena(dtype, layout) for name, dtype in SHARED_DTYPES.items()}

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        dtypes = *SHARED_DTYPES.values(), _offer_dtype(keeps_lost)
        return sum(dtype.itemsize for dtype in dtypes) * layout.trained_elements

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
        """Weights are θ, and the inner optimizer knows nothing."""
        self.gradients.reset(self.gradients.tag)
        self._offer, self._apart, self._inner_steps = None, False, 0
        self._round, self._warm_up_steps = round, WARM_UP_STEPS if round else 0

    def _by_name(self, arena: Tensor) -> dict[str, Tensor]:
        layout = self.store.layout
        return {spec.name: layout.view(arena, spec.name) for spec in layout.trained}

    # ---- the peer's own, for its next start

    @classmethod
    def saved_bytes(cls, arenas: Mapping[str, StateArena]) -> int:
        moments = sum(each.size_bytes for name, each in arenas.items() if name not in WEIGHTS)
        return moments + cls.shared_arenas(arenas)[MASTER].size_bytes

    def own(self) -> Mapping[str, Tensor]:
        """The inner optimizer's state, its steps, and the weights if they are not θ."""
        apart = self._apart or self.gradients.spent[0] > 0
        return (dict(self.store.state) if apart else self._moments()) | {
            STEPS: torch.tensor([self._inner_steps]),
            COUNT: torch.tensor(self.gradients.spent, dtype=torch.float64),
        }

    def adopt_own(self, saved: Mapping[str, Tensor], is_here: bool) -> None:
        apart = not WEIGHTS.isdisjoint(saved)
        wanted = dict(self.store.state) if apart else self._moments()
        numbers = {STEPS: torch.zeros(1).long(), COUNT: torch.zeros(2).double()}
        for name, arena in (wanted | numbers).items():
            given = saved.get(name)
            if given is None or (given.shape, given.dtype) != (arena.shape, arena.dtype):
                raise ValueError(f"the {name} of this peer's own is missing or does not fit")
        for name, arena in (wanted if is_here else self._moments()).items():
            arena.copy_(saved[name])
        self._inner_steps, self._warm_up_steps = int(saved[STEPS]), 0
        if is_here and apart:
            self.store.round_master()
            self._apart = True
            sequences, loss_sum = saved[COUNT].tolist()
            self.gradients.count(int(sequences), loss_sum)
            self.gradients.spend()

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
        self.stepper.wait()
        gradients = self.gradients
        sums, sequences = gradients.sums, gradients.unspent
        norm = gradient_norm(sums, gradients.squares) / sequences
        gradients.spend()
        if not math.isfinite(norm):
            return
        self._inner_steps += 1
        size = min(1.0, sequences / self._inner_sequences)
        warm = min(1.0, self._inner_steps / (self._warm_up_steps + 1))
        rate = learning_rate(self.rate, self._round + 1) * size * warm
        clip = clip_coefficient(norm, self.clip_norm)
        self.stepper.begin(sums, rate, self._inner_steps, clip / sequences)

    # ---- all parts at once

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        if not (self.gradients.sequences or self._apart):
            yield  # they are the shared ones; a step that is under way may go on
            return
        self._swap_all()
        try:
            yield
        finally:
            self._swap_all()

    def _swap(self, part: Part, theta: Tensor, step: StepTerms) -> None:
        with part.weights() as weights:
            own = weights.clone()
            weights.copy_(theta)
            theta.copy_(own)

    def _swap_all(self) -> None:
        self.stepper.begin(self._theta, self._outer_rate, self._round + 1, update=self._swap)
        self.stepper.wait()

    # ---- rounds

    def contribution(self) -> Contribution:
        if self.gradients.unspent:
            self._inner_step()
        self.stepper.wait()
        offer, sequences = self._offer, self.gradients.sequences
        if offer is None or offer.sequences != sequences:
            for part in self.stepper.stretches:
                part.of(self._way).copy_(part.of(self._theta) - weights_of(part.stored))
            offer = self._offer = _Offer(self._way, sequences, self.keeps_lost)
            self._offered_loss_sum = self.gradients.loss_sum
        return offer

    def commit(
        self, mean: FlatNumbers, norm: float, round: int, ours: int, knows_lost: bool
    ) -> None:
        if not math.isfinite(norm):
            raise ValueError(f"the mean's norm is {norm}")
        gradients, offer = self.gradients, self._offer
        spent, spent_loss_sum = gradients.spent
        left_out = 1.0 - ours / max(spent, ours, 1)
        since = offer is not None and ours == offer.sequences > 0
        loss_sum = self._offered_loss_sum if since else spent_loss_sum * (1.0 - left_out)
        step = partial(self._outer_step, 1.0 if since else left_out, since)
        self.stepper.begin(mean, self._outer_rate, round, update=step)
        gradients.taken(ours, loss_sum)
        self._apart = self._apart or (since and self.keeps_lost)
        self._offer, self._round = None, round

    def _outer_step(
        self, share: float, since: bool, part: Part, mean: Tensor, step: StepTerms
    ) -> None:
        """Keeps a `share` of what led away from θ, or what did `since` the offer. θ and m are
        shared: only single operations, which IEEE 754 rounds alike everywhere."""
        theta, momentum = part.of(self._theta), part.of(self._momentum).float()
        with part.weights() as weights:
            kept = (weights - theta).mul_(share) if share else None
            momentum.mul_(self._outer_decay).add_(mean)
            theta.sub_(torch.mul(momentum, self._outer_decay).add_(mean).mul_(step.learning_rate))
            round_to_bfloat16(momentum, part.of(self._momentum))
            weights.copy_(theta)
            if kept is not None:
                weights.add_(kept.add_(part.of(self._way)) if since else kept)


def _offer_dtype(keeps_lost: bool) -> torch.dtype:
    """Beside a codec that takes much away, what bfloat16 does is little."""
    return torch.bfloat16 if keeps_lost else torch.float32
