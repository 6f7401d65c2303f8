"""Simulates a schedule step by step and finds the first promise it breaks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from atom.swap.crossing import ring_slots
from atom.swap.schedule import (
    GRADIENT_SLOTS,
    Backward,
    Event,
    Forward,
    GradientOut,
    Load,
    Shape,
    ValuesIn,
    ValuesOut,
)


class ScheduleError(AssertionError):
    """A schedule breaks an invariant: a defect of Atom, never of a user."""


def check(
    schedule: Iterable[Event], shape: Shape, loaded: Iterable[int] = (), *, training: bool = True
) -> frozenset[int]:
    """Return the sub-models that are in a slot at the schedule's end.

    Raises:
        ScheduleError: An event breaks an invariant, or is missing. The message has the first event
            that computes in a slot not loaded, loads into a slot in use or over one whose graph is
            kept, takes a gradient slot that was not sent, uses a value on the host, moves a value
            that is not there, takes a ring place in use, or is out of order.
    """
    zeros = [0] * shape.micro_batches
    occupants = {shape.slot_of(s): s for s in loaded}
    values = _Values(shape)
    simulation = _Simulation(shape, training, values, occupants, [*zeros], [*zeros])
    for event in schedule:
        simulation.apply(event)
    expected = len(shape.local) if training else 0
    _require(set(simulation.forwards) == {len(shape.local)}, "the end", "a forward is missing")
    _require(set(simulation.backwards) == {expected}, "the end", "a backward is missing")
    _require(len(simulation.gradients_out) == expected, "the end", "a gradient stayed behind")
    return frozenset(simulation.occupants.values())


@dataclass
class _Simulation:
    shape: Shape
    training: bool
    values: "_Values"
    occupants: dict[int, int]
    forwards: list[int]
    """Per micro-batch, of the device's own sub-models, those whose forward is done."""
    backwards: list[int]
    graphs: set[tuple[int, int]] = field(default_factory=set)
    """(sub-model, micro-batch) whose graph waits for its backward."""
    gradients_out: set[int] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        match event:
            case Load():
                self._load(event)
            case Forward():
                self._forward(event)
            case Backward():
                self._backward(event)
            case GradientOut():
                self._gradient_out(event)
            case ValuesOut():
                self.values.go_out(event)
            case ValuesIn():
                self.values.come_in(event)

    def _load(self, event: Load) -> None:
        _require(event.slot == self.shape.slot_of(event.sub_model), event, "it is not its slot")
        occupant = self.occupants.get(event.slot)
        _require(occupant != event.sub_model, event, "it is loaded already")
        _require(all(occupant != of for of, _ in self.graphs), event, "a graph refers to it")
        self.occupants[event.slot] = event.sub_model

    def _forward(self, event: Forward) -> None:
        s, c = event.sub_model, event.micro_batch
        self._require_loaded(event, s)
        _require(self._place(s) == self.forwards[c], event, "forward out of order")
        self.forwards[c] += 1
        self.values.used(event)
        if self.training and self.shape.keeps_graph(s):
            alone = s in self.shape.arrangement.kept or all(s != of for of, _ in self.graphs)
            _require(alone, event, "a second graph of it")
            self.graphs.add((s, c))

    def _backward(self, event: Backward) -> None:
        s, c = event.sub_model, event.micro_batch
        self._require_loaded(event, s)
        local = self.shape.local
        _require(self.forwards[c] == len(local), event, "too early")
        in_order = self._place(s) == len(local) - 1 - self.backwards[c]
        _require(in_order, event, "backward out of order")
        before = local[local.index(s) + GRADIENT_SLOTS :: GRADIENT_SLOTS]
        _require(self.gradients_out.issuperset(before), event, "its gradient slot is in use")
        self.backwards[c] += 1
        self.values.used(event)
        self.graphs.discard((s, c))

    def _gradient_out(self, event: GradientOut) -> None:
        local = self.shape.local
        done = min(self.backwards) >= len(local) - local.index(event.sub_model)
        _require(done, event, "a backward is missing")
        _require(event.sub_model not in self.gradients_out, event, "its gradients are out")
        self.gradients_out.add(event.sub_model)

    def _place(self, sub_model: int) -> int:
        return self.shape.local.index(sub_model)

    def _require_loaded(self, event: Event, sub_model: int) -> None:
        loaded = self.occupants.get(self.shape.slot_of(sub_model)) == sub_model
        _require(loaded, event, "it is in no slot")


class _Values:
    """Positions of the offloaded values, checked at every access."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._moving = {index: shape.crossings[index] for index in shape.moving}
        self._on_device: set[tuple[int, int]] = set()
        self._on_host: set[tuple[int, int]] = set()
        self._ring: dict[int, tuple[int, int]] = {}
        """Per place, the sub-model and micro-batch that it is taken for."""

    def used(self, event: Forward | Backward) -> None:
        s, c = event.sub_model, event.micro_batch
        for index, crossing in self._moving.items():
            if s == crossing.made_by and isinstance(event, Forward):
                self._on_device.add((index, c))
            elif s in crossing.used_by:
                _require((index, c) in self._on_device, event, "a value of it is on the host")
        if isinstance(event, Backward):
            self._ring = {place: of for place, of in self._ring.items() if of != (s, c)}

    def go_out(self, event: ValuesOut) -> None:
        s, c = event.sub_model, event.micro_batch
        leaving = [i for i, each in self._moving.items() if each.used_by[-1] == s]
        _require(bool(leaving), event, "nothing leaves here")
        for index in leaving:
            _require((index, c) in self._on_device, event, "a value is not on the device")
            self._on_device.remove((index, c))
            self._on_host.add((index, c))

    def come_in(self, event: ValuesIn) -> None:
        s, c = event.sub_model, event.micro_batch
        arriving = [i for i, each in self._moving.items() if each.used_by[-1] == s]
        _require(bool(arriving), event, "nothing arrives here")
        inside = 0 <= event.place < ring_slots(self._shape.micro_batches)
        _require(inside and event.place not in self._ring, event, "its place is in use")
        self._ring[event.place] = (s, c)
        for index in arriving:
            _require((index, c) in self._on_host, event, "a value is not on the host")
            _require((index, c) not in self._on_device, event, "a value is on the device")
            self._on_device.add((index, c))


def _require(condition: bool, event: object, complaint: str) -> None:
    if not condition:
        raise ScheduleError(f"{event}: {complaint}")
