"""What lies between sub-models, when each visit touches it, and when it may leave the device. Pure.

A training pass visits sub-models 0 … S-1 and back to 0: 2 S - 1 *visits*, the turn in the middle. A
value is touched by the forward of its maker and of its users, and by the backward of its users; its
gradient by the backward of its users and then of its maker. An offloaded one leaves the device
after a touch if the next is IDLE_VISITS off or more, and is back for the next. So whoever comes
right next finds it there, and there is a whole visit to bring it back in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

IDLE_VISITS = 3
"""From a touch to the next, for leaving to pay: it is being brought in during the visit before."""
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
    """0: only the gradient is meant."""
    gradient_bytes: int
    """0: none flows back, or only the value is meant."""

    @property
    def largest_bytes(self) -> int:
        return max(self.value_bytes, self.gradient_bytes)


class Item(NamedTuple):
    """What moves: a crossing's value, or its gradient."""

    crossing: int
    gradient: bool


@dataclass(frozen=True)
class Stop:
    """What moves around one visit, for each micro-batch."""

    arriving: tuple[Item, ...] = ()
    """On the device again when the visit computes."""
    leaving: tuple[Item, ...] = ()
    """Gone once the visit has computed."""
    copied: frozenset[Item] = frozenset()
    """Of those that leave: the host does not hold them yet."""
    staying: frozenset[Item] = frozenset()
    """Of those that arrive: also used by visits to come, so that they need memory of their own."""


def visit_of(sub_models: int, sub_model: int, backward: bool) -> int:
    """The turn is both its forward and its backward."""
    return 2 * (sub_models - 1) - sub_model if backward else sub_model


def touches(crossing: Crossing, gradient: bool, sub_models: int, training: bool) -> list[int]:
    """Visits that make, use or add to it, ascending, each once."""
    back = [visit_of(sub_models, s, True) for s in reversed(crossing.used_by)]
    if gradient:
        return [*back, visit_of(sub_models, crossing.made_by, True)] if training else []
    there = [crossing.made_by, *crossing.used_by]
    return list(dict.fromkeys([*there, *back])) if training else there


def stops(
    crossings: Sequence[Crossing], moving: frozenset[int], sub_models: int, training: bool
) -> tuple[Stop, ...]:
    """Per visit. `moving`: indices of the crossings that are offloaded."""
    visits = 2 * sub_models - 1 if training else sub_models
    arriving: list[list[Item]] = [[] for _ in range(visits)]
    leaving: list[list[Item]] = [[] for _ in range(visits)]
    copied: list[set[Item]] = [set() for _ in range(visits)]
    staying: list[set[Item]] = [set() for _ in range(visits)]
    for item in items(crossings, moving):
        stays = presence(crossings[item.crossing], item.gradient, sub_models, training)
        for number, (first, last) in enumerate(stays):
            if number > 0:
                arriving[first].append(item)
                if last > first:
                    staying[first].add(item)
            if number < len(stays) - 1:
                leaving[last].append(item)
                if item.gradient or number == 0:  # a value does not change
                    copied[last].add(item)
    return tuple(
        Stop(tuple(a), tuple(b), frozenset(c), frozenset(d))
        for a, b, c, d in zip(arriving, leaving, copied, staying, strict=True)
    )


def items(crossings: Sequence[Crossing], moving: frozenset[int]) -> Iterator[Item]:
    """Values and gradients of the crossings that are offloaded, whether or not they ever leave."""
    for index in sorted(moving):
        if crossings[index].value_bytes:
            yield Item(index, False)
        if crossings[index].gradient_bytes:
            yield Item(index, True)


def presence(
    crossing: Crossing, gradient: bool, sub_models: int, training: bool, leaves: bool = True
) -> list[tuple[int, int]]:
    """First and last visit of each stay on the device; one stay if it never leaves."""
    stays: list[tuple[int, int]] = []
    for visit in touches(crossing, gradient, sub_models, training):
        if stays and not (leaves and visit - stays[-1][1] >= IDLE_VISITS):
            stays[-1] = (stays[-1][0], visit)
        else:
            stays.append((visit, visit))
    return stays


def item_bytes(crossings: Sequence[Crossing], item: Item) -> int:
    crossing = crossings[item.crossing]
    return crossing.gradient_bytes if item.gradient else crossing.value_bytes


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def ring_slot_bytes(crossings: Sequence[Crossing], route: Sequence[Stop]) -> int:
    """What one micro-batch brings in for one visit, at the most."""
    arriving = (sum(aligned(item_bytes(crossings, i)) for i in s.arriving) for s in route)
    return max(arriving, default=0)


def ring_slots(micro_batches: int) -> int:
    """One visit ahead: while a visit computes on a micro-batch, the ring holds those of the visit
    that are still to come and those of the next that came already."""
    return micro_batches + 1


def host_bytes(crossings: Sequence[Crossing], route: Sequence[Stop], micro_batches: int) -> int:
    """What lies on the host, each in a place of its own."""
    gone = {item for stop in route for item in stop.leaving}
    return micro_batches * sum(aligned(item_bytes(crossings, item)) for item in gone)


def moved_bytes(
    crossings: Sequence[Crossing], route: Sequence[Stop], micro_batches: int
) -> tuple[int, int]:
    """Per pass, to the device and to the host."""
    coming = sum(item_bytes(crossings, i) for stop in route for i in stop.arriving)
    going = sum(item_bytes(crossings, i) for stop in route for i in stop.copied)
    return micro_batches * coming, micro_batches * going


def held_bytes(
    crossings: Sequence[Crossing], moving: frozenset[int], sub_models: int, micro_batches: int
) -> int:
    """On the device at the peak of a training pass: values, gradients, the ring, what is leaving.

    Without those of the micro-batch at work, which count as its activations: while a visit goes
    from one micro-batch to the next, what it uses up shrinks as what it makes grows.
    """
    route = stops(crossings, moving, sub_models, training=True)
    ring = ring_slots(micro_batches) * ring_slot_bytes(crossings, route)
    leaving = max((item_bytes(crossings, i) for stop in route for i in stop.copied), default=0)
    most = max(_held_by_visit(crossings, moving, sub_models), default=0)
    return micro_batches * most + ring + OUTGOING * leaving


def _held_by_visit(
    crossings: Sequence[Crossing], moving: frozenset[int], sub_models: int
) -> list[int]:
    """Bytes of one micro-batch when a visit begins, or ends, whichever is more."""
    visits = 2 * sub_models - 1
    before, after = [0] * (visits + 1), [0] * (visits + 1)
    for item in items(crossings, frozenset(range(len(crossings)))):
        size, leaves = item_bytes(crossings, item), item.crossing in moving
        for first, last in presence(
            crossings[item.crossing], item.gradient, sub_models, True, leaves
        ):
            # there when visits first+1 … last begin, and when first … last-1 end
            before[first + 1] += size
            before[last + 1] -= size
            after[first] += size
            after[last] -= size
    held, totals = [0, 0], list[int]()
    for visit in range(visits):
        held = [held[0] + before[visit], held[1] + after[visit]]
        totals.append(max(held))
    return totals
