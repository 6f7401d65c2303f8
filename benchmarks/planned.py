"""From a traced model to the planner's choice of how to send it through a device. Torch alone."""

from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from atom.graph.layers import layers_of
from atom.graph.profile.seconds import Profile
from atom.graph.traced import Graph
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.memory import Cut, Limits
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
    trained_element_bytes: int = 0
    """As `Limits` has it."""

    def choose(self, profile: Profile, device_bytes: int) -> Choice:
        """Raises: DeviceError for what fits in no way."""
        return choose(self.question(profile, device_bytes))

    def question(self, profile: Profile, device_bytes: int) -> Question:
        return Question.of(
            self.graph,
            profile,
            device_bytes,
            self.micro_batches,
            gradient_element_bytes=self.gradient_bytes,
            trained_element_bytes=self.trained_element_bytes,
        )

    def again(self, profile: Profile, choice: Choice) -> Choice:
        """The same cut and arrangement, its time foreseen from another profile."""
        chain = profile.chain
        chain = chain.remembering if choice.cut.remembers and chain.remembering else chain
        limits = replace(self._limits(0), micro_batches=choice.micro_batches)
        cut = Cut.of(chain, profile.link, limits, choice.cut.ends)
        return replace(choice, cut=replace(cut, remembers=choice.cut.remembers))

    def budgets(self, profile: Profile) -> dict[str, int]:
        """Device bytes by their name in `BUDGETS`."""
        chain, ends = profile.chain, layer_ends(self.graph)
        cut = Cut.of(chain, profile.link, self._limits(0), ends)
        everything = frozenset(range(len(ends)))
        least, most = (
            cut.memory(each).total_bytes
            for each in (Arrangement(), Arrangement(resident=everything, kept=everything))
        )
        return dict(zip(BUDGETS, (least, (least + most) // 2, UNLIMITED_BYTES), strict=True))

    def _limits(self, device_bytes: int) -> Limits:
        return Limits(
            device_bytes,
            self.graph.parameter_dtype.itemsize,
            self.micro_batches,
            gradient_element_bytes=self.gradient_bytes,
            trained_element_bytes=self.trained_element_bytes,
        )


def layer_ends(graph: Graph) -> tuple[int, ...]:
    return tuple(accumulate(len(layer.calls) for layer in layers_of(graph)))
