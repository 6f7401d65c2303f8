"""Local steps: a peer takes optimizer steps of its own, and a round averages how far they led.

From the shared weights θ of the last round each peer takes *inner* steps on its own samples. A
round averages Δ = θ − its weights, weighted by sequences, and the *outer* rule makes the next θ:

    m ← μ · m + mean Δ
    θ ← θ − rate · (mean Δ + μ · m)          gradient descent with Nesterov's momentum

as DiLoCo does (Douillard et al. 2023, arXiv 2311.08105). Shared are θ, in float32, and m, rounded
to bfloat16 once it was used. The weights that passes use and the inner optimizer's state are a
peer's own.

Inner steps go on while a round is decided. What a peer has is cut off first: θ − cut is its offer.
What it has done stays with it until a round has taken it. After a commit its weights are

    θ_new + (weights − cut)          if the round took its latest offer
    θ_new + s · (weights − θ_old)    else: s is the share of its sequences that no round has

What a codec took away of Δ stays in its weights, and so it is in its next Δ: while Δ is sent, the
cut moves to where the peer would be with nothing but what was sent.
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
from atom.optim.stepper import Stepper, Update
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore, weights_of
from atom.swap.state_form import HIGH, LOW, MASTER, StateArena, round_to_bfloat16
from atom.swarm.exchange.contribution import Contribution, all_finite
from atom.training.replica.update_rule import UpdateRule

OUTER_MOMENTUM = "outer_momentum"
WEIGHTS = frozenset({MASTER, HIGH, LOW})
WAY, STEPS, COUNT = "way", "steps", "count"
"""Beside the optimizer's own, in what is saved: Δ, and how many inner steps were taken, and of how
many sequences Δ is, with the sum of their losses."""
OWN_DTYPES = torch.float32, torch.bfloat16, torch.float32
"""Beside the replica's arenas: of θ, m, and the weights at the cut."""
WARM_UP_STEPS = 10
"""Inner steps of a peer that comes later: its optimizer's state is empty, others' is not."""


class _Offer(Contribution):
    """n · (θ − cut). What an exchange takes away of it moves the cut: offered again, it is what was
    sent, so whichever of several attempts is committed, the cut says what others have."""

    def __init__(self, theta: Tensor, cut: Tensor, sequences: int, keeps_lost: bool) -> None:
        self.keeps_lost, self.sequences = keeps_lost, sequences
        self._theta, self._cut = theta, cut

    def part(self, start: int, stop: int) -> Tensor:
        way = numpy.subtract(self._theta[start:stop].numpy(), self._cut[start:stop].numpy())
        return torch.from_numpy(numpy.multiply(way, numpy.float32(self.sequences), out=way))

    def lacks(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        """A sum's loss moves weights no further than those of a peer with the average count: the
        next round may count more of a peer that had few."""
        rest, cut = lost.numpy(), self._cut[start : start + lost.numel()].numpy()
        share = numpy.float32(1.0 / max(self.sequences, sequences))
        numpy.add(cut, numpy.multiply(rest, share, out=rest), out=cut)

    def is_finite(self) -> bool:
        return all_finite(self._cut)


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
        super().__init__(store, gradients, stepper, rate, clip_norm, keeps_lost)
        self._inner_sequences = inner_sequences
        self._outer_rate, self._outer_decay = outer_rate, outer_momentum
        elements = store.layout.total_elements
        self._theta, self._momentum, self._cut = (
            allocate_host_memory(elements, dtype) for dtype in OWN_DTYPES
        )
        self._offer: _Offer | None = None
        """From θ to `_cut`; None: there is no cut."""
        self._apart = False
        """Whether weights may differ from θ though nothing is counted."""
        self._offered_loss_sum = 0.0
        self._round = self._inner_steps = self._warm_up_steps = 0

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        layout = next(iter(arenas.values())).layout  # the weights', in whatever form they are
        theta, momentum, _ = (StateArena(dtype, layout) for dtype in OWN_DTYPES)
        return {MASTER: theta, OUTER_MOMENTUM: momentum}

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        return sum(dtype.itemsize for dtype in OWN_DTYPES) * layout.total_elements

    def shared(self) -> Mapping[str, Tensor]:
        return {MASTER: self._theta, OUTER_MOMENTUM: self._momentum}

    # ---- where state comes from

    def initialised(self) -> None:
        for name, theta in self._by_name(self._theta).items():
            theta.copy_(self.store.weights(name))
        self._cut.copy_(self._theta)
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
        self._cut.copy_(self._theta)  # also where nothing is trained
        self.store.changed()
        self._forget(round)

    def _forget(self, round: int) -> None:
        """Weights are θ, and the inner optimizer knows nothing."""
        self.gradients.reset(self.gradients.tag)
        self._offer, self._apart, self._inner_steps = None, False, 0
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
        own = self._moments() | {
            STEPS: torch.tensor([self._inner_steps]),
            COUNT: torch.tensor(self.gradients.spent, dtype=torch.float64),
        }
        way = torch.zeros_like(self._theta)
        for part in self.stepper.stretches:
            torch.sub(part.of(self._theta), weights_of(part.stored), out=part.of(way))
        return own | {WAY: way} if way.any() else own

    def adopt_own(self, saved: Mapping[str, Tensor], is_here: bool) -> None:
        moments = self._moments()
        wanted = {WAY: self._theta} if WAY in saved else {}
        numbers = {STEPS: torch.zeros(1).long(), COUNT: torch.zeros(2).double()}
        for name, arena in (moments | wanted | numbers).items():
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

    # ---- all parts at once

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        assert self._offer is None, "where the peer's own weights are kept meanwhile is a cut"
        if not (self.gradients.sequences or self._apart):
            yield  # they are the shared ones; a step that is under way may go on
            return
        self._in_all_parts(self._put_theta)
        try:
            yield
        finally:
            self._in_all_parts(self._put_back)

    def _put_theta(self, part: Part, theta: Tensor, step: StepTerms) -> None:
        with part.weights() as weights:
            part.of(self._cut).copy_(weights)
            weights.copy_(theta)

    def _put_back(self, part: Part, theta: Tensor, step: StepTerms) -> None:
        with part.weights() as weights:
            weights.copy_(part.of(self._cut))

    def _in_all_parts(self, update: Update) -> None:
        """Also given to `update`: the part's θ."""
        self.stepper.begin(self._theta, self._outer_rate, self._round + 1, update=update)
        self.stepper.wait()

    # ---- rounds

    def contribution(self) -> Contribution:
        if self.gradients.unspent:
            self._inner_step()
        self.stepper.wait()
        offer, sequences = self._offer, self.gradients.sequences
        if offer is None or offer.sequences != sequences:
            for part in self.stepper.stretches:
                part.of(self._cut).copy_(weights_of(part.stored))
            offer = self._offer = _Offer(self._theta, self._cut, sequences, self.keeps_lost)
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
        base, share = (self._cut, 1.0) if since else (self._theta, left_out)
        step = partial(self._outer_step, base, share)
        self.stepper.begin(mean, self._outer_rate, round, update=step)
        gradients.taken(ours, loss_sum)
        self._apart = self._apart or (since and self.keeps_lost)
        self._offer, self._round = None, round

    def _outer_step(
        self, base: Tensor, share: float, part: Part, mean: Tensor, step: StepTerms
    ) -> None:
        """Keeps a `share` of what was done since `base`. θ and m are shared: only single
        operations, which IEEE 754 rounds alike everywhere."""
        theta, momentum = part.of(self._theta), part.of(self._momentum).float()
        with part.weights() as weights:
            kept = (weights - part.of(base)).mul_(share) if share else None
            momentum.mul_(self._outer_decay).add_(mean)
            theta.sub_(torch.mul(momentum, self._outer_decay).add_(mean).mul_(step.learning_rate))
            round_to_bfloat16(momentum, part.of(self._momentum))
            weights.copy_(theta)
            if kept is not None:
                weights.add_(kept)
