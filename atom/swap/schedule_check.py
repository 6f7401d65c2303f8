"""Simulates a schedule step by step and finds the first promise it breaks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from atom.swap.device_slots import GRADIENT_SLOTS
from atom.swap.schedule import Backward, Drop, Event, Forward, GradientOut, Load, Shape


class ScheduleError(AssertionError):
    """A schedule breaks an invariant: a defect of Atom, never of a user."""


def check(
    schedule: Iterable[Event], shape: Shape, loaded: Iterable[int] = (), *, training: bool = True
) -> frozenset[int]:
    """Returns the sub-models that are in a slot at the schedule's end.

    Raises: ScheduleError naming the first event that computes in a slot not loaded, loads into a
    slot in use, drops a resident sub-model or one whose graph is kept, takes a gradient slot that
    has not been sent off, comes out of order, or is missing.
    """
    zeros = [0] * shape.micro_batches
    occupants = {shape.slot_of(s): s for s in loaded}
    simulation = _Simulation(shape, training, occupants, [*zeros], [*zeros])
    for event in schedule:
        simulation.apply(event)
    expected = shape.sub_models if training else 0
    _require(set(simulation.forwards) == {shape.sub_models}, "the end", "a forward is missing")
    _require(set(simulation.backwards) == {expected}, "the end", "a backward is missing")
    _require(len(simulation.gradients_out) == expected, "the end", "a gradient stayed behind")
    return frozenset(simulation.occupants.values())


@dataclass
class _Simulation:
    shape: Shape
    training: bool
    occupants: dict[int, int]
    forwards: list[int]
    """Per micro-batch, sub-models whose forward is done."""
    backwards: list[int]
    graphs: set[tuple[int, int]] = field(default_factory=set)
    """(sub-model, micro-batch) whose graph waits for its backward."""
    gradients_out: set[int] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        match event:
            case Load():
                self._load(event)
            case Drop():
                self._drop(event)
            case Forward():
                self._forward(event)
            case Backward():
                self._backward(event)
            case GradientOut():
                self._gradient_out(event)

    def _load(self, event: Load) -> None:
        _require(event.slot == self.shape.slot_of(event.sub_model), event, "it is not its slot")
        occupant = self.occupants.get(event.slot)
        _require(occupant != event.sub_model, event, "it is loaded already")
        _require(occupant is None, event, "the slot is in use")
        self.occupants[event.slot] = event.sub_model

    def _drop(self, event: Drop) -> None:
        s = event.sub_model
        _require(self.occupants.get(event.slot) == s, event, "it is not in that slot")
        _require(s not in self.shape.arrangement.resident, event, "it is resident")
        _require(all(s != of for of, _ in self.graphs), event, "a graph refers to it")
        del self.occupants[event.slot]

    def _forward(self, event: Forward) -> None:
        s, c = event.sub_model, event.micro_batch
        self._require_loaded(event, s)
        _require(self.forwards[c] == s, event, "forward out of order")
        self.forwards[c] += 1
        if self.training and self.shape.keeps_graph(s):
            alone = s in self.shape.arrangement.kept or all(s != of for of, _ in self.graphs)
            _require(alone, event, "a second graph of it")
            self.graphs.add((s, c))

    def _backward(self, event: Backward) -> None:
        s, c = event.sub_model, event.micro_batch
        self._require_loaded(event, s)
        _require(self.forwards[c] == self.shape.sub_models, event, "too early")
        _require(s == self.shape.sub_models - 1 - self.backwards[c], event, "backward out of order")
        before = range(s + GRADIENT_SLOTS, self.shape.sub_models, GRADIENT_SLOTS)
        _require(self.gradients_out.issuperset(before), event, "its gradient slot is in use")
        self.backwards[c] += 1
        self.graphs.discard((s, c))

    def _gradient_out(self, event: GradientOut) -> None:
        done = min(self.backwards) >= self.shape.sub_models - event.sub_model
        _require(done, event, "a backward is missing")
        _require(event.sub_model not in self.gradients_out, event, "its gradients are out")
        self.gradients_out.add(event.sub_model)

    def _require_loaded(self, event: Event, sub_model: int) -> None:
        loaded = self.occupants.get(self.shape.slot_of(sub_model)) == sub_model
        _require(loaded, event, "it is in no slot")


def _require(condition: bool, event: object, complaint: str) -> None:
    if not condition:
        raise ScheduleError(f"{event}: {complaint}")
