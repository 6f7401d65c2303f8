"""From a traced model to the planner's choice of how to send it through a device. Torch alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from atom.graph.costs.operation_chain import operation_chain
from atom.graph.layers import layers_of
from atom.graph.partition import Chain, Machine
from atom.graph.profile import LinkRates, OperationSeconds, Profile
from atom.graph.traced import Graph
from atom.plan.choice import Choice, Limits, choose, timed
from atom.plan.memory import Reckoning
from atom.plan.pieces import pieces_of
from atom.swap.arrangement import Arrangement

UNLIMITED_BYTES = 1 << 50
BUDGETS = ("swapped", "partly", "resident")
"""Whole layers swapped just fit; half way from there to all that the model takes; no limit."""


@dataclass(frozen=True)
class Planner:
    """One traced model on one device, with the most micro-batches that a pass may accumulate."""

    graph: Graph
    device: torch.device
    micro_batches: int
    gradient_bytes: int = 4
    """Of an element of a gradient, as it leaves."""

    def choose(self, profile: Profile, device_bytes: int) -> Choice:
        """Raises: DeviceError for what fits in no way."""
        limits = Limits(
            device_bytes,
            self._element_bytes,
            self.micro_batches,
            gradient_element_bytes=self.gradient_bytes,
        )
        ends = _layer_ends(self.graph)
        return choose(self._chain(profile.operations), _machine(profile.link), limits, ends)

    def again(self, profile: Profile, choice: Choice) -> Choice:
        """The same cut and arrangement, its time foreseen from another profile."""
        chain = self._chain(profile.operations)
        again = timed(
            chain.remembering if choice.remembers and chain.remembering else chain,
            _machine(profile.link),
            choice.ends,
            choice.arrangement,
            choice.micro_batches,
            self._element_bytes,
            self.gradient_bytes,
        )
        return replace(again, remembers=choice.remembers)

    def budgets(self, profile: Profile) -> dict[str, int]:
        """Device bytes by their name in `BUDGETS`."""
        chain, ends = self._chain(profile.operations), _layer_ends(self.graph)
        pieces = pieces_of(chain, ends)
        everything = frozenset(range(len(pieces)))
        reckoning = Reckoning(pieces, self.micro_batches, self._element_bytes, self.gradient_bytes)
        least, most = (
            reckoning.memory(each).total_bytes
            for each in (Arrangement(), Arrangement(resident=everything, kept=everything))
        )
        return dict(zip(BUDGETS, (least, (least + most) // 2, UNLIMITED_BYTES), strict=True))

    @property
    def _element_bytes(self) -> int:
        return self.graph.parameter_dtype.itemsize

    def _chain(self, seconds: Sequence[OperationSeconds]) -> Chain:
        return operation_chain(self.graph, seconds, fused=self.device.type == "cuda")


def _machine(link: LinkRates) -> Machine:
    return Machine(link.load_bytes_per_s.median, link.gradient_bytes_per_s.median)


def _layer_ends(graph: Graph) -> tuple[int, ...]:
    return tuple(accumulate(len(layer.calls) for layer in layers_of(graph)))
