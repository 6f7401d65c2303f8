"""The layer-major schedule as data: which sub-model is where, and who computes when.

All C micro-batches run through a sub-model before the next one is needed, so the bytes moved per
pass do not depend on C. The sub-models that are swapped take the shared slots in turn: of these,
number n (counted among themselves) always uses slot `n % slots`. That one rule gives everything
else: the last ones of the forward pass are still there when the backward begins, the first ones
are still there when the backward ends, and while one slot computes the others are being filled
with what comes next. A resident sub-model has a slot of its own behind the shared ones and is
loaded once per version of the parameters.

Loads are issued in the order in which they are needed, each as early as its slot allows: whatever
is needed later never stands in the way of what is needed sooner. So a load that has to wait for
its slot holds back the residents needed after it as well, even if the link could have had one of
them meanwhile: how long that would have blocked it, only a clock knows.

In a group (`Arrangement.devices`) each device visits sub-models of its own, in the order of the
whole pass, so no two devices can wait for each other. It waits where something comes from another
one: that is no event.

Values between sub-models that are offloaded (`crossing.py`) leave for the host behind the forward
of their last user, and come back, micro-batch by micro-batch, during the visit before its backward:
through a ring of as many places as there are micro-batches, and one.

The same list is executed by the engine, timed for a plan and checked by the tests.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle

from atom.swap.arrangement import Arrangement
from atom.swap.crossing import OUTGOING, Crossing, aligned, held_bytes, ring_slots


@dataclass(frozen=True)
class Load:
    """Start copying a sub-model's parameters into a slot; the computation goes on. What the slot
    held is forgotten: nothing is written back, the host holds the truth."""

    sub_model: int
    slot: int


@dataclass(frozen=True)
class Forward:
    """Compute a sub-model on one micro-batch and keep its outputs."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class Backward:
    """Push gradients through a sub-model on one micro-batch, recomputed first unless its graph was
    kept."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class GradientOut:
    """Add the sub-model's parameter gradients, summed over this pass, to the host's arena."""

    sub_model: int


@dataclass(frozen=True)
class ValuesOut:
    """What the sub-model is the last to use in the forward goes to the host."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class ValuesIn:
    """Start bringing it back for the sub-model's backward, into one of the places that values use
    in turn; the visit before it goes on computing."""

    sub_model: int
    micro_batch: int
    place: int


GRADIENT_SLOTS = 2
"""One leaves for the host while the next is summed."""

Event = Load | Forward | Backward | GradientOut | ValuesOut | ValuesIn


@dataclass(frozen=True)
class OptimizerStep:
    """Update, on the host, the parameters that no sub-model before this one uses. No event of a
    schedule: it happens under the pass that needs what it makes."""

    sub_model: int


@dataclass(frozen=True)
class GradientSum:
    """Add on the host what a `GradientOut` has brought there, if that is done beside the next."""

    sub_model: int


Observed = Event | OptimizerStep | GradientSum
"""What takes time, and is told to who observes."""


@dataclass(frozen=True)
class Shape:
    """What a schedule is made for. Raises: ValueError if there is no schedule for it."""

    sub_models: int
    micro_batches: int
    arrangement: Arrangement = field(default_factory=Arrangement)
    crossings: tuple[Crossing, ...] = ()
    """What lies between its sub-models; only needed where some of it is offloaded."""
    visited: tuple[int, ...] | None = None
    """The sub-models that this device of a group visits, ascending. None: all."""

    def __post_init__(self) -> None:
        named = self.arrangement.resident | self.arrangement.offloaded | set(self.mine)
        unknown = [s for s in named if not 0 <= s < self.sub_models]
        if self.sub_models < 1 or self.micro_batches < 1 or unknown or not self.mine:
            raise ValueError(f"no schedule exists for {self}")

    @property
    def mine(self) -> Sequence[int]:
        """The sub-models that this device visits."""
        return range(self.sub_models) if self.visited is None else self.visited

    def slot_of(self, sub_model: int) -> int:
        """Of one of its own. The shared slots come first (and stay empty if nothing is swapped),
        then one for each resident sub-model, in their order."""
        return self._slots[sub_model]

    def gradient_slot_of(self, sub_model: int) -> int:
        """Where the sums of one of its own lie: they take turns."""
        return self.mine.index(sub_model) % GRADIENT_SLOTS

    def keeps_graph(self, sub_model: int) -> bool:
        """Is the graph of its forward there when its backward comes, so that none is recomputed?"""
        return sub_model == self.sub_models - 1 or sub_model in self.arrangement.kept

    @cached_property
    def moving(self) -> frozenset[int]:
        """Indices of the crossings that are away for a part of a training pass."""
        arrangement = self.arrangement
        return frozenset(
            index
            for index, each in enumerate(self.crossings)
            if each.made_by in arrangement.offloaded
            and each.value_bytes >= max(arrangement.least_offloaded_bytes, 1)
            and not arrangement.kept.intersection((each.made_by, *each.used_by))
            and each.idles(self.sub_models)
        )

    @cached_property
    def away(self) -> tuple[tuple[int, ...], ...]:
        """Of these, per sub-model, what leaves behind its forward and is back for its backward."""
        found = [list[int]() for _ in range(self.sub_models)]
        for index in sorted(self.moving):
            found[self.crossings[index].used_by[-1]].append(index)
        return tuple(map(tuple, found))

    def away_bytes(self, sub_model: int) -> int:
        """Of one micro-batch."""
        return sum(self.crossings[index].value_bytes for index in self.away[sub_model])

    @cached_property
    def ring_slot_bytes(self) -> int:
        """What one micro-batch brings in for one visit, at the most."""
        return max(map(self._aligned_bytes, self.away))

    @cached_property
    def host_bytes(self) -> int:
        """What lies on the host, each in a place of its own."""
        return self.micro_batches * sum(map(self._aligned_bytes, self.away))

    @cached_property
    def held_bytes(self) -> int:
        """On the device at the peak of a training pass, between sub-models: values, gradients, the
        ring, what is leaving. Without those of the micro-batch at work."""
        ring = ring_slots(self.micro_batches) * self.ring_slot_bytes
        leaving = max(map(self.away_bytes, range(self.sub_models)))
        staying = held_bytes(self.crossings, self.moving, self.sub_models, self.micro_batches)
        return staying + ring + OUTGOING * leaving

    def _aligned_bytes(self, crossings: Iterable[int]) -> int:
        return sum(aligned(self.crossings[index].value_bytes) for index in crossings)

    @cached_property
    def _slots(self) -> dict[int, int]:
        slots, stay = self.arrangement.slots, self.arrangement.resident
        swapped = {s: n % slots for n, s in enumerate(s for s in self.mine if s not in stay)}
        resident = {s: n for n, s in enumerate((s for s in self.mine if s in stay), start=slots)}
        return swapped | resident


def training_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Forward and backward of every micro-batch through every sub-model. Of the last one both
    together, micro-batch by micro-batch, so that nothing of it is computed twice.

    `loaded` sub-models are already in their slots, with current parameters.
    """
    return _plan(shape, True, loaded)


def evaluation_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Forward only, of every micro-batch through every sub-model."""
    return _plan(shape, False, loaded)


def _plan(shape: Shape, training: bool, loaded: Iterable[int]) -> list[Event]:
    """Before each visit, loads for this and coming ones are issued, up to the first whose slot
    holds what is needed sooner."""
    last = shape.sub_models - 1
    there = [(s, True, training and s == last) for s in shape.mine]
    back = [(s, False, True) for s in reversed(shape.mine) if s != last]
    visits = [*there, *back] if training else there
    order, turn = [s for s, _, _ in visits], len(there) - 1
    occupants = {shape.slot_of(s): s for s in loaded}
    needed_sooner: Counter[int] = Counter()
    events: list[Event] = []
    ahead, places = 0, cycle(range(ring_slots(shape.micro_batches)))
    for number, (s, forward, backward) in enumerate(visits):
        while ahead < len(visits) and _free(shape, order[ahead], occupants, needed_sooner):
            events += _load(shape, order[ahead], occupants)
            needed_sooner[order[ahead]] += 1
            ahead += 1
        coming = turn <= number < len(visits) - 1 and bool(shape.away[order[number + 1]])
        leaving = training and not backward and bool(shape.away[s])
        for c in range(shape.micro_batches):
            if coming:
                events.append(ValuesIn(order[number + 1], c, next(places)))
            events += [Forward(s, c)] if forward else []
            events += [Backward(s, c)] if backward else []
            events += [ValuesOut(s, c)] if leaving else []
        events += [GradientOut(s)] if backward else []
        needed_sooner[s] -= 1
    return events


def _free(
    shape: Shape, sub_model: int, occupants: Mapping[int, int], needed_sooner: Counter[int]
) -> bool:
    """Is the sub-model in its slot, or can it be loaded there now?"""
    occupant = occupants.get(shape.slot_of(sub_model))
    return occupant is None or occupant == sub_model or needed_sooner[occupant] == 0


def _load(shape: Shape, sub_model: int, occupants: dict[int, int]) -> list[Load]:
    slot = shape.slot_of(sub_model)
    if occupants.get(slot) == sub_model:
        return []
    occupants[slot] = sub_model
    return [Load(sub_model, slot)]
