"""Local steps: each peer takes its own optimizer steps, and a round averages the weight changes.

Starting at the shared weights θ of the last round, each peer takes *inner* steps on its own
samples. A round averages Δ = θ − weights, weighted by sequences, and the *outer* rule computes the
next θ:

    m ← μ · m + mean Δ
    θ ← θ − rate · (mean Δ + μ · m)          gradient descent with Nesterov's momentum

as DiLoCo does (Douillard et al. 2023, arXiv 2311.08105). The shared state is θ, in float32, and m,
rounded to bfloat16 after use. The weights that passes use and the inner optimizer's state are each
peer's own.

Inner steps continue while a round is being decided. When a peer makes its offer, it stores Δ; the
exchange then subtracts from the stored Δ what the codec lost, so Δ is exactly what was sent. Local
progress stays in the weights until a round has taken it. After a commit the weights are

    θ_new + (weights − θ_old) + Δ    if the round took the peer's latest offer
    θ_new + s · (weights − θ_old)    otherwise; s: share of its sequences that no round has taken

So anything that was not sent remains in the weights and is part of the next Δ: the loss of the
codec and, with a codec of large loss, the rounding of Δ, which is then stored in bfloat16.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.gradients import FlatNumbers
from atom.optim.optimizer import Part, StepTerms
from atom.optim.rate import learning_rate
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import MASTER, WEIGHTS, StateArena, round_to_bfloat16, weights_of
from atom.swarm.exchange.contribution import Contribution, all_finite
from atom.training.replica.update_rule import UpdateRule

OUTER_MOMENTUM = "outer_momentum"
STEPS, COUNT = "steps", "count"
"""Names of two further saved values.

The first is the number of inner steps. The second has the number of sequences that inner steps have
used but no round has taken, and the sum of their losses.
"""
SHARED_DTYPES = {MASTER: torch.float32, OUTER_MOMENTUM: torch.bfloat16}
"""Dtypes of θ and m."""
WARM_UP_STEPS = 10
"""Number of inner steps with a reduced rate for a late joiner, whose optimizer state is empty."""


class _Offer(Contribution):
    """Contribution n · Δ, where n is the number of sequences.

    An exchange subtracts the loss of the codec from Δ. A later attempt therefore offers the values
    that were already sent: whichever attempt is committed, the other peers have this Δ.
    """

    def __init__(self, difference: Tensor, sequences: int, keeps_lost: bool) -> None:
        """Offer `sequences` · `difference`, where `difference` is Δ [elements]."""
        self.keeps_lost, self.sequences = keeps_lost, sequences
        self._difference = difference

    def part(self, start: int, stop: int) -> Tensor:
        difference = self._difference[start:stop].float().numpy()
        return torch.from_numpy(numpy.multiply(difference, numpy.float32(self.sequences)))

    def record_lost(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        """Subtract a loss, which is given in units of n · Δ, from Δ.

        The loss of a sum over members is divided by at least the members' average count. Otherwise
        a peer with few sequences would change its weights too much: in the next round the change
        counts with that round's sequences, which may be more.
        """
        rest, share = lost.numpy(), numpy.float32(1.0 / max(self.sequences, sequences))
        numpy.multiply(rest, share, out=rest)
        self._difference[start : start + lost.numel()].sub_(lost)

    def is_finite(self) -> bool:
        return all_finite(self._difference)


class LocalSteps(UpdateRule):
    """Update rule with local steps, as the module's docstring explains.

    docs/local-steps.md explains it to owners of runs.
    """

    same_steps: ClassVar[bool] = False
    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        *given: Any,
        inner_sequences: int,
        outer_rate: float,
        outer_momentum: float,
        keeps_lost: bool = False,
        **others: float,
    ) -> None:
        """Allocate θ, m and Δ. The inner learning rate is the rate of the current round.

        Args:
            given: The first fields of `UpdateRule`.
            inner_sequences: Number of sequences of one inner step.
            outer_rate: Rate of the outer rule.
            outer_momentum: Momentum μ of the outer rule.
            keeps_lost: As `UpdateRule.keeps_lost`.
            others: Keys of `[update]` that other rules use.

        Raises:
            MemoryError: The host memory is too small.
        """
        super().__init__(*given)
        self.keeps_lost = keeps_lost
        assert self.store.on_device is None, "weights are moved on the host"
        self._inner_sequences = inner_sequences
        self._outer_rate, self._outer_decay = outer_rate, outer_momentum
        elements = self.store.layout.trained_elements
        self._theta, self._momentum, self._difference = (
            allocate_host_memory(elements, dtype)
            for dtype in (*SHARED_DTYPES.values(), _offer_dtype(keeps_lost))
        )
        self._offer: _Offer | None = None
        """Latest offer, whose Δ is in `_difference`; None: `_difference` has no meaning."""
        self._apart = False
        """True if the weights may differ from θ although no sequences are counted."""
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

    # ---- initial, fetched and reset state

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
        """Reset counts and offer, after the weights became θ and the inner optimizer's state 0."""
        self.gradients.reset()
        self._offer, self._apart, self._inner_steps = None, False, 0
        self._round, self._warm_up_steps = round, WARM_UP_STEPS if round else 0

    def _by_name(self, arena: Tensor) -> dict[str, Tensor]:
        layout = self.store.layout
        return {spec.name: layout.view(arena, spec.name) for spec in layout.trained}

    # ---- own state for this peer's next start

    @classmethod
    def saved_bytes(cls, arenas: Mapping[str, StateArena]) -> int:
        moments = sum(each.size_bytes for name, each in arenas.items() if name not in WEIGHTS)
        return moments + cls.shared_arenas(arenas)[MASTER].size_bytes

    def own(self) -> Mapping[str, Tensor]:
        """Return this peer's own state, which other peers do not have.

        It is the inner optimizer's state, the counts of its steps and of spent sequences, and the
        weights if they are not θ.
        """
        apart = self._apart or self.gradients.spent[0] > 0
        return (dict(self.store.state) if apart else self._moments()) | {
            STEPS: torch.tensor([self._inner_steps]),
            COUNT: torch.tensor(self.gradients.spent, dtype=torch.float64),
        }

    def adopt_own(self, saved: Mapping[str, Tensor], at_same_state: bool) -> None:
        """Restore the state of the inner optimizer and, at the same θ, also the local progress.

        The local progress is the weights if they are not θ, and the counts of spent sequences.
        Arguments and errors are those of `UpdateRule.adopt_own`.
        """
        apart = not WEIGHTS.isdisjoint(saved)
        wanted = dict(self.store.state) if apart else self._moments()
        numbers = {STEPS: torch.zeros(1).long(), COUNT: torch.zeros(2).double()}
        for name, arena in (wanted | numbers).items():
            given = saved.get(name)
            if given is None or (given.shape, given.dtype) != (arena.shape, arena.dtype):
                raise ValueError(f"the {name} of this peer's own is missing or does not fit")
        for name, arena in (wanted if at_same_state else self._moments()).items():
            arena.copy_(saved[name])
        self._inner_steps, self._warm_up_steps = int(saved[STEPS]), 0
        if at_same_state and apart:
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
        """Begin an inner step with all unused gradients; skip a gradient that is not finite.

        With fewer sequences than `inner_sequences`, the rate is lowered in proportion.
        """
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

    # ---- swapping own and shared weights

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        if not (self.gradients.sequences or self._apart):
            yield  # the weights are the shared ones; a running step may continue
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
                part.of(self._difference).copy_(part.of(self._theta) - weights_of(part.stored))
            offer = self._offer = _Offer(self._difference, sequences, self.keeps_lost)
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
        """Update θ and m of one part, and set the weights to θ plus the remaining local progress.

        θ and m must have the same bits on all peers, so their update uses only single operations,
        which IEEE 754 rounds alike everywhere.

        Args:
            share: Share of (weights − θ) that is kept.
            since: True if the round took the latest offer: Δ is then added to the kept difference,
                which leaves the progress since the offer.
            part: Part of the arenas.
            mean: Mean Δ of this part.
            step: Terms of the step; the learning rate is the outer rate.
        """
        theta, momentum = part.of(self._theta), part.of(self._momentum).float()
        with part.weights() as weights:
            kept = (weights - theta).mul_(share) if share else None
            momentum.mul_(self._outer_decay).add_(mean)
            theta.sub_(torch.mul(momentum, self._outer_decay).add_(mean).mul_(step.learning_rate))
            round_to_bfloat16(momentum, part.of(self._momentum))
            weights.copy_(theta)
            if kept is not None:
                weights.add_(kept.add_(part.of(self._difference)) if since else kept)


def _offer_dtype(keeps_lost: bool) -> torch.dtype:
    """Return the dtype of the stored Δ: next to the loss of a coarse codec, bfloat16's is small."""
    return torch.bfloat16 if keeps_lost else torch.float32
