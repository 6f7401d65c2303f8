"""How a program uses a device: a plan chooses it; schedule, slots and engine follow it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MINIMUM_SLOTS = 2
"""Fewest shared slots: one slot computes while the other loads."""


@dataclass(frozen=True)
class Arrangement:
    """Choice of the sub-models and values that stay on the device; all others are swapped.

    Raises:
        ValueError: Fewer than two slots, or a kept or trained sub-model is not resident, or a group
            of devices cannot do what is asked.
    """

    slots: int = MINIMUM_SLOTS
    """Number of slots that swapped sub-models share; resident ones have their own slots."""
    resident: frozenset[int] = frozenset()
    """Sub-models with a slot of their own: loaded once after every optimizer step."""
    kept: frozenset[int] = frozenset()
    """Resident sub-models whose autograd graph is kept, so that the forward is not recomputed.

    One graph per micro-batch is kept. (The last sub-model's graph always stays, for one micro-batch
    at a time.)
    """
    offloaded: frozenset[int] = frozenset()
    """Sub-models whose outputs wait in host memory while no visit needs them soon.

    Values that are the same in every micro-batch stay on the device, as do values in a kept graph.
    """
    least_offloaded_bytes: int = 64 * 2**10
    """Size from which a value is offloaded; smaller values stay."""
    trained: frozenset[int] = frozenset()
    """Resident sub-models that are trained on the device.

    If no other sub-model uses them, their parameters live there together with optimizer state and
    gradient sums, and the optimizer steps them there.
    """
    devices: int = 1
    """Number of devices in the group that runs a pass together, each with its own sub-models.

    `device_of` assigns the sub-models. A group offloads no values and trains nothing on its
    devices.
    """

    def __post_init__(self) -> None:
        if self.slots < MINIMUM_SLOTS:
            raise ValueError(f"{self.slots} slots: swapping needs at least {MINIMUM_SLOTS}")
        if not self.trained <= self.resident:
            raise ValueError(f"trained but not resident: {sorted(self.trained - self.resident)}")
        if not self.kept <= self.resident:
            raise ValueError(f"kept but not resident: {sorted(self.kept - self.resident)}")
        if self.devices < 1 or (self.devices > 1 and (self.offloaded or self.trained)):
            raise ValueError("a group of devices offloads no values and trains no parameters")


def device_of(parameters: Sequence[Mapping[str, int]], devices: int) -> tuple[int, ...]:
    """Return the device of each sub-model in a group.

    Devices take turns: if consecutive sub-models were on one device, the others would be idle. A
    device loses its turn only while it holds more elements than another device by at least the size
    of the next assignment. Sub-models that share a parameter are on one device, which sums the
    parameter's gradients in the order in which a single device would sum them.

    Args:
        parameters: Per sub-model, the number of elements by parameter name.
        devices: Number of devices in the group.

    Returns:
        Per sub-model, the index of its device.
    """
    first = list[int]()  # per sub-model: the earliest one connected by shared parameters
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
