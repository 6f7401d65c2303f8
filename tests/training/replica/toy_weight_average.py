"""Averaging weights every so often: what it takes to add an update rule."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.optim.clipping import gradient_norm
from atom.swap.state_form import MASTER, StateArena
from atom.swarm.exchange.contribution import Contribution, Sums
from atom.training.replica.update_rule import UpdateRule

EVERY_PASSES = 2


class WeightAverage(UpdateRule):
    """A peer takes an optimizer step of its own every two passes. A round averages the weights.

    Shared are the averaged weights alone. The weights that passes use, and the optimizer's state,
    are the peer's own.
    """

    def __init__(self, *given: Any, **options: float) -> None:
        super().__init__(*given)
        self._average = torch.zeros_like(self.store.master)
        self._sent = torch.zeros_like(self.store.master)
        self._passes = self._steps = 0
        self._is_sent = False

    @classmethod
    def shared_arenas(cls, arenas: Mapping[str, StateArena]) -> Mapping[str, StateArena]:
        return {MASTER: arenas[MASTER]}

    @classmethod
    def own_bytes(cls, layout: ParameterLayout, keeps_lost: bool) -> int:
        return 2 * layout.total_elements * torch.float32.itemsize

    def shared(self) -> Mapping[str, Tensor]:
        return {MASTER: self._average}

    def initialised(self) -> None:
        self._average.copy_(self.store.master)

    def adopted(self, round: int) -> None:
        self.store.clear_state()
        self.store.master.copy_(self._average)
        self._steps = 0

    def pass_ended(self) -> None:
        self._is_sent = False
        self._passes += 1
        if self._passes % EVERY_PASSES:
            return
        gradients = self.gradients
        mean = gradients.sums.div_(gradients.unspent)
        self._steps += 1
        self.begin_step(mean, gradient_norm(mean), self._steps)
        gradients.spend()

    def contribution(self) -> Contribution:
        self.stepper.wait()
        if not self._is_sent:
            torch.mul(self.store.master, self.gradients.sequences, out=self._sent)
            self._is_sent = True
        return Sums(self._sent)

    def commit(self, mean: Tensor, norm: float, round: int, ours: int, knows_lost: bool) -> None:
        self.stepper.wait()
        self._average.copy_(mean)
        self.store.master.copy_(self._average)
        self.store.round_master()
        self._passes = 0
