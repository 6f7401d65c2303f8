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

Values between sub-models that are offloaded (`crossing.py`) leave for the host after the visit that
needs them last for a while, and come back, micro-batch by micro-batch, during the visit before the
one that needs them again: through a ring of as many places as there are micro-batches, and one.

The same list is executed by the engine, timed for a plan and checked by the tests.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import cycle
from typing import NamedTuple

from atom.swap.arrangement import Arrangement
from atom.swap.crossing import Crossing, Stop, ring_slots, stops, visit_of


@dataclass(frozen=True)
class Load:
    """Start copying a sub-model's parameters into a free slot; the computation goes on."""

    sub_model: int
    slot: int


@dataclass(frozen=True)
class Forward:
    """Compute a sub-model on one micro-batch and keep its outputs."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class Drop:
    """Forget the parameters in a slot. Nothing is written back: the host holds the truth."""

    sub_model: int
    slot: int


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
    """What a visit of the sub-model leaves behind, and nobody needs soon, goes to the host."""

    sub_model: int
    micro_batch: int
    backward: bool
    """Behind the sub-model's backward (for the last one: behind its turn), or its forward?"""


@dataclass(frozen=True)
class ValuesIn:
    """Start bringing back what a visit of the sub-model needs from the host, into a place of the
    ring; the visit before it goes on computing."""

    sub_model: int
    micro_batch: int
    backward: bool
    place: int


Event = Load | Forward | Drop | Backward | GradientOut | ValuesOut | ValuesIn


@dataclass(frozen=True)
class OptimizerStep:
    """Update, on the host, the parameters that no sub-model before this one uses. No event of a
    schedule: it happens under the pass that needs what it makes."""

    sub_model: int


Observed = Event | OptimizerStep
"""What takes time, and is told to who observes."""


class _Kind(Enum):
    FORWARD = 0
    BACKWARD = 1
    TURN = 2
    """The last sub-model: forward and backward of each micro-batch together, so that nothing of
    it is computed twice."""


class _Visit(NamedTuple):
    sub_model: int
    kind: _Kind


@dataclass(frozen=True)
class Shape:
    """What a schedule is made for. Raises: ValueError if there is no schedule for it."""

    sub_models: int
    micro_batches: int
    arrangement: Arrangement = field(default_factory=Arrangement)
    crossings: tuple[Crossing, ...] = ()
    """What lies between its sub-models; only needed where some of it is offloaded."""

    def __post_init__(self) -> None:
        named = self.arrangement.resident | self.arrangement.offloaded
        unknown = [s for s in named if not 0 <= s < self.sub_models]
        if self.sub_models < 1 or self.micro_batches < 1 or unknown:
            raise ValueError(f"no schedule exists for {self}")

    @property
    def slots(self) -> int:
        """Weight slots: the shared ones (which stay empty if nothing is swapped), then one per
        resident sub-model, in their order."""
        return self.arrangement.slots + len(self.arrangement.resident)

    def slot_of(self, sub_model: int) -> int:
        return self._slots[sub_model]

    def keeps_graph(self, sub_model: int) -> bool:
        """Is the graph of its forward there when its backward comes, so that none is recomputed?"""
        return sub_model == self.sub_models - 1 or sub_model in self.arrangement.kept

    @cached_property
    def moving(self) -> frozenset[int]:
        """Indices of the crossings that are offloaded."""
        arrangement = self.arrangement
        if not arrangement.offloaded:
            return frozenset()
        return frozenset(
            index
            for index, each in enumerate(self.crossings)
            if each.made_by in arrangement.offloaded
            and each.largest_bytes >= arrangement.least_offloaded_bytes
            and not arrangement.kept.intersection((each.made_by, *each.used_by))
        )

    def stop(self, event: "Forward | Backward | ValuesIn | ValuesOut", training: bool) -> Stop:
        """What moves around the visit that an event belongs to."""
        return self._route(training)[self.visit(event)]

    def visit(self, event: "Forward | Backward | ValuesIn | ValuesOut") -> int:
        """Number of the visit that an event belongs to; for values coming in, that needs them."""
        back = isinstance(event, Backward) or getattr(event, "backward", False)
        return visit_of(self.sub_models, event.sub_model, back)

    def _route(self, training: bool) -> tuple[Stop, ...]:
        return self.training_stops if training else self.evaluation_stops

    @cached_property
    def training_stops(self) -> tuple[Stop, ...]:
        return stops(self.crossings, self.moving, self.sub_models, training=True)

    @cached_property
    def evaluation_stops(self) -> tuple[Stop, ...]:
        return stops(self.crossings, self.moving, self.sub_models, training=False)

    @cached_property
    def _slots(self) -> tuple[int, ...]:
        slots, swapped, resident = list[int](), 0, 0
        for sub_model in range(self.sub_models):
            if sub_model in self.arrangement.resident:
                slots.append(self.arrangement.slots + resident)
                resident += 1
            else:
                slots.append(swapped % self.arrangement.slots)
                swapped += 1
        return tuple(slots)


def training_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Forward and backward of every micro-batch through every sub-model.

    `loaded` sub-models are already in their slots, with current parameters.
    """
    last = shape.sub_models - 1
    forward = [_Visit(s, _Kind.FORWARD) for s in range(last)]
    backward = [_Visit(s, _Kind.BACKWARD) for s in reversed(range(last))]
    visits = [*forward, _Visit(last, _Kind.TURN), *backward]
    return _plan(shape, visits, shape.training_stops, loaded)


def evaluation_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Forward only, of every micro-batch through every sub-model."""
    visits = [_Visit(s, _Kind.FORWARD) for s in range(shape.sub_models)]
    return _plan(shape, visits, shape.evaluation_stops, loaded)


def _plan(
    shape: Shape, visits: Sequence[_Visit], route: Sequence[Stop], loaded: Iterable[int]
) -> list[Event]:
    """Before each visit, loads for this and coming ones are issued, up to the first whose slot
    holds what is needed sooner."""
    occupants = {shape.slot_of(s): s for s in loaded}
    needed_sooner: Counter[int] = Counter()
    events: list[Event] = []
    ahead, places = 0, cycle(range(ring_slots(shape.micro_batches)))
    for number, visit in enumerate(visits):
        while ahead < len(visits) and _free(shape, visits[ahead], occupants, needed_sooner):
            events += _load(shape, visits[ahead].sub_model, occupants)
            needed_sooner[visits[ahead].sub_model] += 1
            ahead += 1
        coming = visits[number + 1] if number + 1 < len(visits) else None
        if coming and not route[number + 1].arriving:
            coming = None
        for micro_batch in range(shape.micro_batches):
            if coming:
                events.append(_values_in(coming, micro_batch, next(places)))
            events += _compute(visit, micro_batch)
            if route[number].leaving:
                events.append(_values_out(visit, micro_batch))
        if visit.kind is not _Kind.FORWARD:
            events.append(GradientOut(visit.sub_model))
        needed_sooner[visit.sub_model] -= 1
    return events


def _free(
    shape: Shape, visit: _Visit, occupants: dict[int, int], needed_sooner: Counter[int]
) -> bool:
    """Is the visited sub-model in its slot, or can it be loaded there now?"""
    occupant = occupants.get(shape.slot_of(visit.sub_model))
    return occupant is None or occupant == visit.sub_model or needed_sooner[occupant] == 0


def _load(shape: Shape, sub_model: int, occupants: dict[int, int]) -> list[Event]:
    slot = shape.slot_of(sub_model)
    occupant = occupants.get(slot)
    if occupant == sub_model:
        return []
    occupants[slot] = sub_model
    load = Load(sub_model, slot)
    return [load] if occupant is None else [Drop(occupant, slot), load]


def _compute(visit: _Visit, micro_batch: int) -> list[Event]:
    there, back = Forward(visit.sub_model, micro_batch), Backward(visit.sub_model, micro_batch)
    match visit.kind:
        case _Kind.FORWARD:
            return [there]
        case _Kind.TURN:
            return [there, back]
        case _Kind.BACKWARD:
            return [back]


def _values_in(visit: _Visit, micro_batch: int, place: int) -> ValuesIn:
    return ValuesIn(visit.sub_model, micro_batch, visit.kind is not _Kind.FORWARD, place)


def _values_out(visit: _Visit, micro_batch: int) -> ValuesOut:
    return ValuesOut(visit.sub_model, micro_batch, visit.kind is not _Kind.FORWARD)
