"""How a program uses a device: decided by a plan, obeyed by schedule, slots and engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MINIMUM_SLOTS = 2
"""One slot computes while the other loads."""


@dataclass(frozen=True)
class Arrangement:
    """`slots` are shared by all sub-models that are swapped; the others have one of their own.

    Raises: ValueError for fewer than two slots, for keeping the activations of a sub-model whose
    weights are swapped out in between, or for what a group cannot do.
    """

    slots: int = MINIMUM_SLOTS
    resident: frozenset[int] = frozenset()
    """Sub-models with a slot of their own: loaded once after every optimizer step."""
    kept: frozenset[int] = frozenset()
    """Resident sub-models whose forward is not recomputed: its graph stays for the backward, once
    per micro-batch. (The last sub-model's stays anyway, one micro-batch at a time.)"""
    offloaded: frozenset[int] = frozenset()
    """Sub-models whose values for others, and their gradients, wait in host memory while no
    visit needs them soon. What is the same in every micro-batch stays, and what a kept graph
    holds anyway."""
    least_offloaded_bytes: int = 64 * 2**10
    """A value that is smaller stays."""
    trained: frozenset[int] = frozenset()
    """Resident sub-models whose parameters live on the device, with the optimizer's state and the
    sums of their gradients, if no other sub-model uses them: they are stepped on the device."""
    devices: int = 1
    """That run a pass together, each with sub-models of its own (`device_of`): a group. None of
    their values is offloaded, and nothing is trained on them."""

    def __post_init__(self) -> None:
        if self.slots < MINIMUM_SLOTS:
            raise ValueError(f"{self.slots} slots: swapping needs at least {MINIMUM_SLOTS}")
        if not self.trained <= self.resident:
            raise ValueError(f"not resident: {sorted(self.trained - self.resident)}")
        if not self.kept <= self.resident:
            raise ValueError(f"not resident, cannot be kept: {sorted(self.kept - self.resident)}")
        if self.devices < 1 or (self.devices > 1 and (self.offloaded or self.trained)):
            raise ValueError("a group of devices offloads no values, and nothing is trained on it")


def device_of(parameters: Sequence[Mapping[str, int]], devices: int) -> tuple[int, ...]:
    """Which device of a group has each sub-model. `parameters`: by sub-model, name → elements.

    In turn: of two that follow each other on one device, the second finds the others idle. Only a
    device that is ahead of another by as many elements is passed over. Those that share a parameter
    are on one device: its gradients are summed there, in the order in which one device would sum
    them.
    """
    first = list[int]()  # of those that it shares with, itself among them
    for index, own in enumerate(parameters):
        together = {first[n] for n, other in enumerate(parameters[:index]) if own.keys() & other}
        first.append(min(together, default=index))
        first = [first[-1] if each in together else each for each in first]
    found, elements, turn = dict[int, int](), [0] * devices, 0
    for root in dict.fromkeys(first):
        whole = {
            n: e for s, own in enumerate(parameters) if first[s] == root for n, e in own.items()
        }
        gets, least = sum(whole.values()), min(elements)
        in_turn = ((turn + n) % devices for n in range(devices))
        found[root] = next(d for d in in_turn if elements[d] - least < gets or elements[d] == least)
        elements[found[root]] += gets
        turn = found[root] + 1
    return tuple(found[root] for root in first)
