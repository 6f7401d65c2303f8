"""The path from a traced model to the planner's choice for one device. Torch alone."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

import torch

from atom.graph.costs.seconds import Profile, assume_graph
from atom.graph.layers import layers_of
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3, GPT3Config
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.memory import Cut, Limits
from atom.swap.schedule import Arrangement

UNLIMITED_BYTES = 1 << 50
BUDGETS = ("swapped", "partly", "resident")
"""Amounts of memory: the least for whole layers, half way to all of the model, no limit."""


def gpt3(size: str) -> GPT3Config:
    """Return one of the paper's models with GPT-2's vocabulary."""
    return GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=size)


@cache
def graph_of(size: str, layers: int | None = None) -> Graph:
    """Trace GPT-3 in bfloat16 on one sequence; `layers` replaces the number of blocks."""
    config = gpt3(size) if layers is None else replace(gpt3(size), layers=layers)
    tokens = torch.zeros(1, config.sequence_tokens, dtype=torch.int64)
    module = GPT3(config, device="meta", dtype=torch.bfloat16)
    return trace(module, {"tokens": tokens, "targets": tokens.clone()})


@cache
def profile_of(size: str, card: str, layers: int | None = None) -> Profile:
    """Estimate the seconds of each operation from the rates of a card."""
    return assume_graph(graph_of(size, layers), card)


@dataclass(frozen=True)
class Planner:
    """Planner of one traced model on one device."""

    graph: Graph
    device: torch.device
    micro_batches: int
    """Most micro-batches that a pass may accumulate."""
    gradient_bytes: int = 4
    """Size of one element of a gradient on its way to the host."""
    trained_element_bytes: int = 0
    """See `Limits`."""

    def choose(self, profile: Profile, device_bytes: int) -> Choice:
        """Return the fastest plan within this memory.

        Raises:
            DeviceError: no plan fits.
        """
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
        """Return the same cut and arrangement, with times estimated from another profile."""
        chain = profile.chain
        chain = chain.remembering if choice.cut.remembers and chain.remembering else chain
        limits = replace(self._limits(0), micro_batches=choice.micro_batches)
        cut = Cut.of(chain, profile.link, limits, choice.cut.ends)
        return replace(choice, cut=replace(cut, remembers=choice.cut.remembers))

    def budgets(self, profile: Profile) -> dict[str, int]:
        """Return the device memory in bytes that each name of `BUDGETS` means."""
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
    """Return the index after each layer's last operation."""
    return tuple(accumulate(len(layer.calls) for layer in layers_of(graph)))
