"""What lies between sub-models, and when it may leave the device. Pure.

A training pass visits sub-models 0 … S-1 and back to 0: 2 S - 1 *visits*, the turn in the middle. A
value is needed by the forward of its maker and of its users, and by the backward of its users; its
gradient by the backward of its users and then of its maker. A value that is offloaded leaves behind
the forward of its last user, and is back for that one's backward, if these are IDLE_VISITS off or
more. So whoever comes right next finds it there, and there is a whole visit to bring it back in.
Gradients stay: those of plain values are used up one visit after they are made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

IDLE_VISITS = 3
"""From the last forward to the first backward, for leaving to pay: it is being brought in during
the visit before."""
OUTGOING = 2
"""Leave at a time: who wants to leave as a third waits for the first to be out."""
ALIGNMENT_BYTES = 512
"""Every value starts at a multiple of this wherever it lies, as an allocator would have it."""


@dataclass(frozen=True)
class Crossing:
    """Memory that sub-model `made_by` makes and others use, of one micro-batch."""

    made_by: int
    used_by: tuple[int, ...]
    """Ascending, all of them behind the maker."""
    value_bytes: int
    gradient_bytes: int
    """0: none flows back."""
    names: tuple[str, ...] = ()
    """Of the values in it, where it moves."""

    def back_in(self, sub_models: int) -> int:
        """The visit of its last user's backward."""
        return _backward_visit(sub_models, self.used_by[-1])

    def idles(self, sub_models: int) -> bool:
        """Is it long enough from its last forward to its first backward, for leaving to pay?"""
        return self.back_in(sub_models) - self.used_by[-1] >= IDLE_VISITS


def _backward_visit(sub_models: int, sub_model: int) -> int:
    """The turn is both its forward and its backward."""
    return 2 * (sub_models - 1) - sub_model


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def ring_slots(micro_batches: int) -> int:
    """One visit ahead: while a visit computes on a micro-batch, the ring holds those of the visit
    that are still to come and those of the next that came already."""
    return micro_batches + 1


Hops = dict[tuple[int, int], list[Crossing]]
"""From a sub-model to another one: what goes."""


def hops(crossings: Iterable[Crossing], on: Sequence[int]) -> tuple[Hops, Hops]:
    """What goes from device to device of a group (`on`: per sub-model, its device): values, then
    gradients.

    A value goes from its maker to the first user on each other device. Its gradient goes the way in
    which one device sums it: from the last user to the one before, and on to the maker. So a
    sub-model finds what it would find on one device, and the bits are the same. The state of random
    numbers goes along from sub-model to sub-model, with values or alone.
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
    return _apart(values, on), _apart(gradients, on)


def _apart(found: Hops, on: Sequence[int]) -> Hops:
    return {(start, end): what for (start, end), what in found.items() if on[start] != on[end]}


def held_bytes(
    crossings: Sequence[Crossing],
    moving: frozenset[int],
    sub_models: int,
    micro_batches: int,
    on: Sequence[int] = (),
    device: int = 0,
) -> int:
    """On the device at the peak of a training pass: values and gradients, without the ring and what
    is leaving. `moving`: indices of those that are away for a while. `on`: per sub-model, its
    device in a group, where nothing moves: what one makes for another device is there at once, and
    on its own until the visit after it.

    Without those of the micro-batch at work, which count as its activations: while a visit goes
    from one micro-batch to the next, what it uses up shrinks as what it makes grows.
    """
    visits = 2 * sub_models - 1
    before, after = [0] * (visits + 1), [0] * (visits + 1)
    for index, crossing in enumerate(crossings):
        where = on or (0,) * sub_models
        for size, first, last in _stays(crossing, index in moving, sub_models, where, device):
            # there when visits first+1 … last begin, and when first … last-1 end
            before[first + 1] += size
            before[last + 1] -= size
            after[first] += size
            after[last] -= size
    held, most = (0, 0), 0
    for visit in range(visits):
        held = held[0] + before[visit], held[1] + after[visit]
        most = max(most, *held)
    return micro_batches * most


def _stays(
    crossing: Crossing, moves: bool, sub_models: int, on: Sequence[int], device: int
) -> Iterable[tuple[int, int, int]]:
    """Bytes on the device, and the first and last visit that touches them there."""
    size, made, last_used = crossing.value_bytes, crossing.made_by, crossing.used_by[-1]
    users = [user for user in crossing.used_by if on[user] == device]
    if users:
        back, gone = crossing.back_in(sub_models), _backward_visit(sub_models, users[0])
        yield from [(size, made, last_used), (size, back, gone)] if moves else [(size, made, gone)]
    elif on[made] == device:
        yield size, made, made + 1
    for earlier, later in pairwise((made, *crossing.used_by)):
        back, gone = _backward_visit(sub_models, later), _backward_visit(sub_models, earlier)
        if on[earlier] == device:
            yield crossing.gradient_bytes, back, gone
        elif on[later] == device:
            yield crossing.gradient_bytes, back, back + 1
