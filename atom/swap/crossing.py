"""Values between sub-models, and when they may leave the device. Pure functions.

A training pass visits the sub-models 0 … S-1 and then back to 0: 2 S - 1 *visits*, with the turn in
the middle. A value is needed by the forward of its maker and of its users, and by the backward of
its users. Its gradient is needed by the backward of its users, then of its maker.

An offloaded value leaves after the forward of its last user, and is back before the backward of the
same user, if these are at least LEAST_IDLE_VISITS apart. So the visit right after the forward still
finds the value on the device, and a whole visit remains to bring it back. Gradients stay on the
device: a plain value's gradient is used up one visit after it is computed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

LEAST_IDLE_VISITS = 3
"""Least distance from the last forward to the first backward at which offloading pays.

The value comes back during the visit before the backward.
"""
MOST_OUTGOING = 2
"""Number of copies to the host at a time; a third waits for the end of the first."""
ALIGNMENT_BYTES = 512
"""Alignment of every value on the host and in the ring; allocators align alike."""


@dataclass(frozen=True)
class Crossing:
    """Memory that sub-model `made_by` writes and other sub-models read, for one micro-batch."""

    made_by: int
    used_by: tuple[int, ...]
    """Sub-models that read it: ascending, all after the maker."""
    value_bytes: int
    gradient_bytes: int
    """Size of the gradient; 0: no gradient flows back."""
    names: tuple[str, ...] = ()
    """Names of the values in it, if it may move."""

    def return_visit(self, sub_models: int) -> int:
        """Return the visit that is the backward of the last user."""
        return _backward_visit(sub_models, self.used_by[-1])

    def pays_to_offload(self, sub_models: int) -> bool:
        """Return True if the value is idle for long enough to offload it."""
        return self.return_visit(sub_models) - self.used_by[-1] >= LEAST_IDLE_VISITS


def _backward_visit(sub_models: int, sub_model: int) -> int:
    """Return the visit of a sub-model's backward; the last sub-model has one visit for both."""
    return 2 * (sub_models - 1) - sub_model


def aligned(size_bytes: int) -> int:
    """Return the size rounded up to a multiple of ALIGNMENT_BYTES."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def ring_slots(micro_batches: int) -> int:
    """Return the number of places in the ring, which is filled one visit ahead.

    While a visit computes on one micro-batch, the ring holds the values for the remaining
    micro-batches of this visit, and the values that already arrived for the next visit.
    """
    return micro_batches + 1


Hops = dict[tuple[int, int], list[Crossing]]
"""Crossings to send, by the pair of sending and receiving sub-model."""


def hops(crossings: Iterable[Crossing], on: Sequence[int]) -> tuple[Hops, Hops]:
    """Return the transfers between the devices of a group: values, then gradients.

    A value goes from its maker to the first user on each other device. Its gradient takes the order
    in which a single device sums it: from the last user to the one before, and finally to the
    maker. So a sub-model finds the same data as on a single device, and the bits are the same. The
    random state goes from each sub-model to the next, with values or alone.

    Args:
        crossings: Values between sub-models.
        on: Device of each sub-model.
    """
    values: Hops = {hop: [] for hop in pairwise(range(len(on)))}
    gradients: Hops = {}
    for each in crossings:
        first = {on[user]: user for user in reversed(each.used_by)}
        for user in first.values():
            values.setdefault((each.made_by, user), []).append(each)
        for earlier, later in pairwise((each.made_by, *each.used_by)):
            if each.gradient_bytes:
                gradients.setdefault((later, earlier), []).append(each)
    return _between_devices(values, on), _between_devices(gradients, on)


def _between_devices(found: Hops, on: Sequence[int]) -> Hops:
    return {(start, end): sent for (start, end), sent in found.items() if on[start] != on[end]}


def held_bytes(
    crossings: Sequence[Crossing],
    moving: frozenset[int],
    sub_models: int,
    micro_batches: int,
    on: Sequence[int] = (),
    device: int = 0,
) -> int:
    """Return the bytes of values and gradients on a device at the peak of a training pass.

    The ring and the copies that are leaving are not included. Neither is the micro-batch at work,
    which counts as activations: while a visit goes from one micro-batch to the next, its inputs
    shrink as its outputs grow.

    Args:
        crossings: Values between sub-models.
        moving: Indices of the crossings that are on the host for a part of the pass.
        sub_models: Number of sub-models.
        micro_batches: Micro-batches of the pass.
        on: Device of each sub-model in a group; empty: a single device. In a group no value is
            offloaded. An output for another device is there at once, and stays on its own device
            until the next visit.
        device: Index of the device in the group.
    """
    where = on or (0,) * sub_models
    changes = [0] * (2 * sub_models)
    """Change of the bytes at each visit's begin; the last entry is the end of the pass."""
    for index, crossing in enumerate(crossings):
        for size, first, last in _on_device(crossing, index in moving, sub_models, where, device):
            # present from the end of visit `first` until visit `last` has begun
            changes[first + 1] += size
            changes[last + 1] -= size
    return micro_batches * max(accumulate(changes))


def _on_device(
    crossing: Crossing, moves: bool, sub_models: int, on: Sequence[int], device: int
) -> Iterable[tuple[int, int, int]]:
    """Yield the bytes on the device with the first and last visit that uses them there."""
    size, at, last_used = crossing.value_bytes, crossing.made_by, crossing.used_by[-1]
    users = [user for user in crossing.used_by if on[user] == device]
    if users:
        back, last = crossing.return_visit(sub_models), _backward_visit(sub_models, users[0])
        yield from [(size, at, last_used), (size, back, last)] if moves else [(size, at, last)]
    elif on[at] == device:
        yield size, at, at + 1
    for earlier, later in pairwise((at, *crossing.used_by)):
        back, last = _backward_visit(sub_models, later), _backward_visit(sub_models, earlier)
        if on[earlier] == device:
            yield crossing.gradient_bytes, back, last
        elif on[later] == device:
            yield crossing.gradient_bytes, back, back + 1
