"""How a program uses a device: decided by a plan, obeyed by schedule, slots and engine."""

from dataclasses import dataclass

MINIMUM_SLOTS = 2
"""One slot computes while the other loads."""


@dataclass(frozen=True)
class Arrangement:
    """`slots` are shared by all sub-models that are swapped; the others have one of their own.

    Raises: ValueError for fewer than two slots, or for keeping the activations of a sub-model
    whose weights are swapped out in between.
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

    def __post_init__(self) -> None:
        if self.slots < MINIMUM_SLOTS:
            raise ValueError(f"{self.slots} slots: swapping needs at least {MINIMUM_SLOTS}")
        if not self.trained <= self.resident:
            raise ValueError(f"not resident: {sorted(self.trained - self.resident)}")
        if not self.kept <= self.resident:
            raise ValueError(f"not resident, cannot be kept: {sorted(self.kept - self.resident)}")
