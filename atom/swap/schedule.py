"""The layer-major schedule as a list of events: loads, computations and transfers of a pass.

All C micro-batches run through a sub-model before the next sub-model is needed, so the bytes moved
per pass do not depend on C. The swapped sub-models take the shared slots in turn: number n (counted
among them) always uses slot `n % slots`. This single rule has all the desired effects. The last
sub-models of the forward are still present when the backward begins. The first sub-models are still
present when the backward ends. While one slot computes, the others are filled with the next
sub-models. A resident sub-model has its own slot after the shared ones, and is loaded once per
version of the parameters.

Loads are issued in the order in which they are needed, each as early as its slot allows, so a load
never delays a more urgent one. A load that waits for its slot also delays later loads of resident
sub-models, even if the link is idle. Whether such a load would fit into the gap depends on
durations, which the schedule does not know.

In a group (`Arrangement.devices`) each device visits its own sub-models in the order of the whole
pass, so no two devices can wait for each other. Waiting for data from another device is not an
event.

Offloaded values (`crossing.py`) leave for the host after the forward of their last user. They come
back, micro-batch by micro-batch, during the visit before that user's backward, through a ring with
one place more than micro-batches.

The engine executes this list, a plan estimates its duration, and the tests check it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle

from atom.graph.ir import Program, SubModel
from atom.swap.crossing import MOST_OUTGOING, Crossing, aligned, held_bytes, ring_slots


@dataclass(frozen=True)
class Load:
    """Start copying a sub-model's parameters into a slot, while computing continues.

    The slot's content is overwritten and not written back: the host's copy is the current one.
    """

    sub_model: int
    slot: int


@dataclass(frozen=True)
class Forward:
    """Compute a sub-model on one micro-batch and keep its outputs."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class Backward:
    """Push gradients through a sub-model on one micro-batch.

    The sub-model is recomputed first, unless its graph was kept.
    """

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class GradientOut:
    """Add the sub-model's parameter gradients, summed over this pass, to the host's arena."""

    sub_model: int


@dataclass(frozen=True)
class ValuesOut:
    """Start copying the values to the host whose last forward use was in this sub-model."""

    sub_model: int
    micro_batch: int


@dataclass(frozen=True)
class ValuesIn:
    """Start copying the same values back for the sub-model's backward, into a place of the ring.

    The previous visit continues to compute during the copy.
    """

    sub_model: int
    micro_batch: int
    place: int


GRADIENT_SLOTS = 2
"""Number of gradient slots: one leaves for the host while the next is summed."""

Event = Load | Forward | Backward | GradientOut | ValuesOut | ValuesIn


@dataclass(frozen=True)
class OptimizerStep:
    """Update, on the host, the parameters that no earlier sub-model uses.

    It is not an event of a schedule: it runs during the pass that needs its result.
    """

    sub_model: int


@dataclass(frozen=True)
class GradientSum:
    """Add gradients that a `GradientOut` has copied, on the host, during the next copy."""

    sub_model: int


Observed = Event | OptimizerStep | GradientSum
"""Work that takes time and is reported to observers."""

Observer = Callable[[Observed, int, float, float], None]
"""Function that receives (event or other work, index of the device in its group, begin, end).

Begin and end are in seconds of the device's clock. Also the parts of an optimizer step that events
waited for are reported. Calls come from several threads in no particular order, but all calls of a
pass come before the pass returns.
"""


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


@dataclass(frozen=True)
class Shape:
    """Input of a schedule.

    Raises:
        ValueError: No schedule exists for it.
    """

    sub_models: int
    micro_batches: int
    arrangement: Arrangement = field(default_factory=Arrangement)
    crossings: tuple[Crossing, ...] = ()
    """Values between its sub-models; only needed if some of them are offloaded."""
    visited: tuple[int, ...] | None = None
    """Sub-models that this device of a group visits, ascending; None: all."""

    def __post_init__(self) -> None:
        named = self.arrangement.resident | self.arrangement.offloaded | set(self.local)
        unknown = [s for s in named if not 0 <= s < self.sub_models]
        if self.sub_models < 1 or self.micro_batches < 1 or unknown or not self.local:
            raise ValueError(f"no schedule exists for {self}")

    @property
    def local(self) -> Sequence[int]:
        """Sub-models that this device visits, ascending."""
        return range(self.sub_models) if self.visited is None else self.visited

    def slot_of(self, sub_model: int) -> int:
        """Return the weight slot of a local sub-model.

        The shared slots come first, and stay empty if no sub-model is swapped. One slot for each
        resident sub-model follows, in order.
        """
        return self._slots[sub_model]

    def gradient_slot_of(self, sub_model: int) -> int:
        """Return the gradient slot of a local sub-model; consecutive ones take turns."""
        return self.local.index(sub_model) % GRADIENT_SLOTS

    def keeps_graph(self, sub_model: int) -> bool:
        """Return True if the graph of the forward is kept, so the backward recomputes nothing."""
        return sub_model == self.sub_models - 1 or sub_model in self.arrangement.kept

    @cached_property
    def moving(self) -> frozenset[int]:
        """Indices of the crossings that are on the host for a part of a training pass."""
        arrangement = self.arrangement
        return frozenset(
            index
            for index, each in enumerate(self.crossings)
            if each.made_by in arrangement.offloaded
            and each.value_bytes >= max(arrangement.least_offloaded_bytes, 1)
            and not arrangement.kept.intersection((each.made_by, *each.used_by))
            and each.pays_to_offload(self.sub_models)
        )

    @cached_property
    def offloads(self) -> tuple[tuple[int, ...], ...]:
        """Moving crossings, by the sub-model after whose forward they leave.

        They are back for the same sub-model's backward.
        """
        found = [list[int]() for _ in range(self.sub_models)]
        for index in sorted(self.moving):
            found[self.crossings[index].used_by[-1]].append(index)
        return tuple(map(tuple, found))

    def offloaded_bytes(self, sub_model: int) -> int:
        """Return the bytes that leave after this sub-model's forward on one micro-batch."""
        return sum(self.crossings[index].value_bytes for index in self.offloads[sub_model])

    @cached_property
    def ring_slot_bytes(self) -> int:
        """Most bytes that come back for one visit and one micro-batch."""
        return max(map(self._aligned_bytes, self.offloads))

    @cached_property
    def host_bytes(self) -> int:
        """Host memory for all moving values; every value has its own place."""
        return self.micro_batches * sum(map(self._aligned_bytes, self.offloads))

    @cached_property
    def held_bytes(self) -> int:
        """Device memory for values between sub-models at the peak of a training pass.

        It includes values, gradients, the ring, and copies that are leaving, but not the values of
        the micro-batch at work.
        """
        ring = ring_slots(self.micro_batches) * self.ring_slot_bytes
        leaving = max(map(self.offloaded_bytes, range(self.sub_models)))
        staying = held_bytes(self.crossings, self.moving, self.sub_models, self.micro_batches)
        return staying + ring + MOST_OUTGOING * leaving

    def _aligned_bytes(self, crossings: Iterable[int]) -> int:
        return sum(aligned(self.crossings[index].value_bytes) for index in crossings)

    @cached_property
    def _slots(self) -> dict[int, int]:
        slots, stay = self.arrangement.slots, self.arrangement.resident
        swapped = {s: n % slots for n, s in enumerate(s for s in self.local if s not in stay)}
        resident = {s: n for n, s in enumerate((s for s in self.local if s in stay), start=slots)}
        return swapped | resident


def shape_of(
    program: Program, arrangement: Arrangement, micro_batches: int = 1, place: int = 0
) -> Shape:
    """Return the shape of a program's passes under an arrangement.

    The values between sub-models are included only if some are offloaded.

    Args:
        program: Program to run.
        arrangement: Use of the device or of the group.
        micro_batches: Micro-batches of a pass.
        place: Index of this device in its group.
    """
    parts, visited = program.sub_models, None
    crossings = crossings_of(program) if arrangement.offloaded else ()
    if arrangement.devices > 1:
        owners = device_of([program.layout.elements(p) for p in parts], arrangement.devices)
        visited = tuple(s for s, owner in enumerate(owners) if owner == place)
    return Shape(len(parts), micro_batches, arrangement, crossings, visited)


def crossings_of(program: Program) -> tuple[Crossing, ...]:
    """Return the values that may be offloaded, in the order in which they are computed.

    Values that share memory move together. Batch entries, the loss, and values that are the same in
    every micro-batch are left out.

    Raises:
        ValueError: The program does not describe one of its values.
    """
    users, found = users_of(program.sub_models), list[Crossing]()
    for part in program.sub_models:
        together: dict[str, list[str]] = {}
        for name in part.outputs:
            if name in users and name not in program.shared:
                if name not in program.values:
                    raise ValueError(f"the program does not describe the value {name}")
                memory = program.values[name].memory
                together.setdefault(memory or f"{name} alone", []).append(name)
        for names in together.values():
            specs = [program.values[name] for name in names]
            size = max(each.memory_bytes for each in specs) or sum(s.size_bytes for s in specs)
            used_by = tuple(sorted({user for name in names for user in users[name]}))
            found.append(Crossing(part.index, used_by, size, 0, tuple(names)))
    return tuple(found)


def users_of(
    sub_models: Iterable[SubModel],
    named: Callable[[SubModel], Iterable[str]] = lambda sub_model: sub_model.inputs,
) -> dict[str, list[int]]:
    """Return the sub-models that use each value or parameter, ascending, by its name.

    Args:
        sub_models: Sub-models in order.
        named: Function that returns the names that a sub-model uses; by default its inputs.
    """
    users: dict[str, list[int]] = {}
    for sub_model in sub_models:
        for name in named(sub_model):
            users.setdefault(name, []).append(sub_model.index)
    return users


def training_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Return the events of a forward and a backward of every micro-batch through every sub-model.

    Forward and backward of the last sub-model alternate, micro-batch by micro-batch, so it is not
    recomputed.

    Args:
        shape: Input of the schedule.
        loaded: Sub-models that are already in their slots, with current parameters.
    """
    return _schedule(shape, True, loaded)


def evaluation_pass(shape: Shape, loaded: Iterable[int] = ()) -> list[Event]:
    """Return the events of a forward of every micro-batch through every sub-model.

    Args:
        shape: Input of the schedule.
        loaded: Sub-models that are already in their slots, with current parameters.
    """
    return _schedule(shape, False, loaded)


def _schedule(shape: Shape, training: bool, loaded: Iterable[int]) -> list[Event]:
    """Return the events of a pass.

    Before each visit, loads for this visit and for coming ones are issued, up to the first load
    whose slot holds a sub-model that is needed sooner.
    """
    last = shape.sub_models - 1
    forward_visits = [(s, True, training and s == last) for s in shape.local]
    backward_visits = [(s, False, True) for s in reversed(shape.local) if s != last]
    visits = [*forward_visits, *backward_visits] if training else forward_visits
    order, turn = [s for s, _, _ in visits], len(forward_visits) - 1
    occupants = {shape.slot_of(s): s for s in loaded}
    needed_sooner: Counter[int] = Counter()
    events: list[Event] = []
    issued, places = 0, cycle(range(ring_slots(shape.micro_batches)))
    for number, (s, forward, backward) in enumerate(visits):
        while issued < len(visits) and _can_load(shape, order[issued], occupants, needed_sooner):
            slot = shape.slot_of(order[issued])
            if occupants.get(slot) != order[issued]:
                occupants[slot] = order[issued]
                events.append(Load(order[issued], slot))
            needed_sooner[order[issued]] += 1
            issued += 1
        fetching = turn <= number < len(visits) - 1 and bool(shape.offloads[order[number + 1]])
        leaving = training and not backward and bool(shape.offloads[s])
        for c in range(shape.micro_batches):
            if fetching:
                events.append(ValuesIn(order[number + 1], c, next(places)))
            events += [Forward(s, c)] if forward else []
            events += [Backward(s, c)] if backward else []
            events += [ValuesOut(s, c)] if leaving else []
        events += [GradientOut(s)] if backward else []
        needed_sooner[s] -= 1
    return events


def _can_load(
    shape: Shape, sub_model: int, occupants: Mapping[int, int], needed_sooner: Counter[int]
) -> bool:
    """Return True if the sub-model is in its slot, or can be loaded there now."""
    occupant = occupants.get(shape.slot_of(sub_model))
    return occupant is None or occupant == sub_model or needed_sooner[occupant] == 0
