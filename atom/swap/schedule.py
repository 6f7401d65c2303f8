"""The layer-major schedule as data: which sub-model is where, and who computes when.

All C micro-batches run through a sub-model before the next one is needed, so the bytes moved per
pass do not depend on C. Sub-model s always uses slot `s % slots`. That one rule gives everything
else: the last `slots` sub-models of the forward pass are still there when the backward begins, the
first `slots` are still there when the backward ends, and while one slot computes the others are
being filled with what comes next.

The same list is executed by the engine, simulated for a plan and checked by the tests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

MINIMUM_SLOTS = 2
"""One slot computes while the other loads."""


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
    """Recompute a sub-model on one micro-batch and push gradients through it."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class GradientOut:
    """Add the sub-model's parameter gradients, summed over this pass, to the host's arena."""

    sub_model: int


Event = Load | Forward | Drop | Backward | GradientOut


class ScheduleError(AssertionError):
    """A schedule breaks an invariant: a defect of Atom, never of a user."""


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
    """What a schedule is made for."""

    sub_models: int
    micro_batches: int
    slots: int = MINIMUM_SLOTS

    def __post_init__(self) -> None:
        if self.sub_models < 1 or self.micro_batches < 1 or self.slots < MINIMUM_SLOTS:
            raise ValueError(f"no schedule exists for {self}")

    def slot_of(self, sub_model: int) -> int:
        return sub_model % self.slots


def training_pass(shape: Shape, resident: Iterable[int] = ()) -> list[Event]:
    """Forward and backward of every micro-batch through every sub-model.

    `resident` sub-models are already in their slots, with current parameters.
    """
    last = shape.sub_models - 1
    forward = [_Visit(s, _Kind.FORWARD) for s in range(last)]
    backward = [_Visit(s, _Kind.BACKWARD) for s in reversed(range(last))]
    return _plan(shape, [*forward, _Visit(last, _Kind.TURN), *backward], resident)


def evaluation_pass(shape: Shape, resident: Iterable[int] = ()) -> list[Event]:
    """Forward only, of every micro-batch through every sub-model."""
    return _plan(shape, [_Visit(s, _Kind.FORWARD) for s in range(shape.sub_models)], resident)


def _plan(shape: Shape, visits: Sequence[_Visit], resident: Iterable[int]) -> list[Event]:
    occupants = {shape.slot_of(s): s for s in resident}
    events: list[Event] = []
    for position, visit in enumerate(visits):
        window = visits[position : position + shape.slots]
        events += _prefetch(shape, [v.sub_model for v in window], occupants)
        events += _compute(visit, shape.micro_batches)
    return events


def _prefetch(shape: Shape, needed: Sequence[int], occupants: dict[int, int]) -> list[Event]:
    """Loads what is needed, soonest first, until a slot is met whose content is needed sooner."""
    events: list[Event] = []
    for ahead, sub_model in enumerate(needed):
        slot = shape.slot_of(sub_model)
        occupant = occupants.get(slot)
        if occupant == sub_model:
            continue
        if occupant in needed[:ahead]:
            break
        if occupant is not None:
            events.append(Drop(occupant, slot))
        events.append(Load(sub_model, slot))
        occupants[slot] = sub_model
    return events


def _compute(visit: _Visit, micro_batches: int) -> list[Event]:
    s, events = visit.sub_model, list[Event]()
    for c in range(micro_batches):
        if visit.kind in (_Kind.FORWARD, _Kind.TURN):
            events.append(Forward(s, c))
        if visit.kind in (_Kind.BACKWARD, _Kind.TURN):
            events.append(Backward(s, c))
    if visit.kind is not _Kind.FORWARD:
        events.append(GradientOut(s))
    return events


def loaded_elements(schedule: Iterable[Event], elements: Sequence[int]) -> int:
    """Parameter elements copied to the device; `elements[s]` is the size of sub-model s."""
    return sum(elements[event.sub_model] for event in schedule if isinstance(event, Load))


@dataclass
class _Simulation:
    shape: Shape
    occupants: dict[int, int] = field(default_factory=dict)
    forwards: list[int] = field(default_factory=list)
    """Per micro-batch, sub-models whose forward is done."""
    backwards: list[int] = field(default_factory=list)
    gradients_out: list[int] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        match event:
            case Load(sub_model, slot):
                _require(slot not in self.occupants, event, "the slot is in use")
                _require(0 <= slot < self.shape.slots, event, "there is no such slot")
                _require(sub_model not in self.occupants.values(), event, "it is loaded already")
                self.occupants[slot] = sub_model
            case Drop(sub_model, slot):
                _require(self.occupants.get(slot) == sub_model, event, "it is not in that slot")
                del self.occupants[slot]
            case Forward(sub_model, micro_batch):
                self._require_loaded(event, sub_model)
                _require(self.forwards[micro_batch] == sub_model, event, "forward out of order")
                self.forwards[micro_batch] += 1
            case Backward(sub_model, micro_batch):
                self._require_loaded(event, sub_model)
                _require(self.forwards[micro_batch] == self.shape.sub_models, event, "too early")
                expected = self.shape.sub_models - 1 - self.backwards[micro_batch]
                _require(sub_model == expected, event, "backward out of order")
                self.backwards[micro_batch] += 1
            case GradientOut(sub_model):
                done = min(self.backwards) >= self.shape.sub_models - sub_model
                _require(done, event, "a backward is missing")
                _require(sub_model not in self.gradients_out, event, "its gradients are out")
                self.gradients_out.append(sub_model)

    def _require_loaded(self, event: Event, sub_model: int) -> None:
        _require(sub_model in self.occupants.values(), event, "it is in no slot")


def check(
    schedule: Iterable[Event], shape: Shape, resident: Iterable[int] = (), *, training: bool = True
) -> frozenset[int]:
    """Simulates a schedule and returns the sub-models that are in a slot at its end.

    Raises: ScheduleError naming the first event that computes in a slot not loaded, loads into a
    slot in use, comes out of order, or is missing.
    """
    shape_zeros = [0] * shape.micro_batches
    simulation = _Simulation(
        shape, {shape.slot_of(s): s for s in resident}, [*shape_zeros], [*shape_zeros]
    )
    for event in schedule:
        simulation.apply(event)
    expected = shape.sub_models if training else 0
    _require(set(simulation.forwards) == {shape.sub_models}, "the end", "a forward is missing")
    _require(set(simulation.backwards) == {expected}, "the end", "a backward is missing")
    _require(len(simulation.gradients_out) == expected, "the end", "a gradient stayed behind")
    return frozenset(simulation.occupants.values())


def _require(condition: bool, event: object, complaint: str) -> None:
    if not condition:
        raise ScheduleError(f"{event}: {complaint}")
