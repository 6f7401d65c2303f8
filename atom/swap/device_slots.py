"""Device memory for sub-models: a few flat slots, reused for ever, with modules that view them.

Slots that sub-models share come first, then one per resident sub-model. Each is memory of its own:
a load into one leaves the version counters of all others alone, so a graph kept over a resident's
parameters stays valid while its neighbours are swapped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import nn

from atom.graph.ir import ParameterLayout, Program, SubModel, padded_elements
from atom.graph.segment import bind as bind_parameters
from atom.swap.arrangement import Arrangement
from atom.swap.boundary_memory import BoundaryMemory, shape_of
from atom.swap.device import Copy, Device
from atom.swap.schedule import GRADIENT_SLOTS, Shape

FLOAT32_BYTES = torch.float32.itemsize

Pieces = Callable[[int, int], Iterable[tuple[int, torch.Tensor]]]
"""Elements [start, stop) of an arena: its pieces, in order, each where it is, and the number that
it begins with."""
Factory = Callable[[], nn.Module]
"""Builds a sub-model's module: parameters without memory, constants on the device."""


@dataclass(frozen=True)
class Run:
    """A contiguous piece of the arena that a sub-model uses: one copy moves it."""

    arena_offset: int
    slot_offset: int
    elements: int

    @property
    def stretch(self) -> tuple[int, int]:
        """Its arena elements, [start, stop)."""
        return self.arena_offset, self.arena_offset + self.elements


@dataclass(frozen=True)
class SlotLayout:
    """Where a sub-model's parameters lie in a flat slot; a parameter used twice lies there once.

    Parameters keep the arena's order and alignment, so neighbours in the arena are neighbours in
    the slot and travel together.
    """

    offsets: dict[str, int]
    """Slot offset per parameter name."""
    runs: tuple[Run, ...]
    elements: int
    trained_elements: int
    """Before those that are frozen."""

    @classmethod
    def of(cls, names: Iterable[str], layout: ParameterLayout) -> "SlotLayout":
        specs = sorted((layout.by_name[name] for name in set(names)), key=lambda spec: spec.offset)
        offsets: dict[str, int] = {}
        runs: list[Run] = []
        used = trained = 0
        for spec in specs:
            padded = padded_elements(spec.numel)
            offsets[spec.name] = used
            if runs and runs[-1].arena_offset + runs[-1].elements == spec.offset:
                last = runs[-1]
                runs[-1] = Run(last.arena_offset, last.slot_offset, last.elements + padded)
            else:
                runs.append(Run(spec.offset, used, padded))
            used += padded
            trained = trained if spec.frozen else used
        return cls(offsets, tuple(runs), used, trained)


Tag = tuple[int, tuple[Run, ...], int]
"""What a slot holds: a sub-model's pieces of the arena, as of a version of the host's store.
Programs that cut the model alike make use of each other's loads."""


@dataclass
class DeviceSlots:
    """Flat slots on the device, shared by all programs of one replica (training, evaluation)."""

    weights: tuple[torch.Tensor, ...]
    """In the computing precision: the shared slots, [largest swapped sub-model's elements] each;
    then the residents', [its own elements] each."""
    gradients: tuple[torch.Tensor, ...]
    """[most trained elements of a sub-model] each, float32. One is enough where sums are
    rounded."""
    leaving: tuple[torch.Tensor, ...]
    """Where sums are rounded before they leave, as large; none if they leave as they are."""
    carried: dict[str, torch.Tensor]
    """By name, the sums of parameters that several sub-models use, [its padded elements] each: in
    float32, where they go on from one to the next."""
    shapes: dict[tuple[SubModel, ...], Shape]
    """By the sub-models of the programs that the slots were made for; of one micro-batch."""
    boundary: BoundaryMemory
    """For values between sub-models that are offloaded."""
    tags: dict[int, Tag] = field(default_factory=dict)
    """Per weight slot: what it holds. Absent while its content is not to be trusted."""
    state: list[torch.Tensor] = field(default_factory=list)
    """`DeviceState.memory`, which comes and goes with the slots."""
    waiting: dict[int, torch.Tensor] = field(default_factory=dict)
    """On the host, by sub-model, what waits there for an earlier one, as `waiting_elements` says,
    in the numbers in which gradients leave; empty where the device is the only one."""

    @classmethod
    def allocate(
        cls,
        programs: Sequence[Program],
        device: Device,
        precision: torch.dtype,
        arrangement: Arrangement | None = None,
        micro_batches: int = 1,
        gradients: torch.dtype = torch.float32,
        is_only: bool = True,
        place: int = 0,
    ) -> "DeviceSlots":
        """Slots in which the first of `programs` runs as `arrangement` says (none: all swapped).

        Others that cut the model alike (evaluation without dropout) run in the very same slots.
        One that is cut otherwise has no residents: it is swapped through the shared slots, which
        are made large enough for it. `micro_batches`: the most that a pass may have, where
        values are offloaded. `gradients`: in which numbers they leave. `is_only`: no other device
        fills the same store. `place`: the device's in its group.

        Raises: ValueError for an arrangement of sub-models that the program has not got, or of
        more devices than that.
        """
        shapes = _shapes(programs, arrangement or Arrangement(), place)
        both = list(zip(programs, shapes, strict=True))
        sizes = [_weight_elements(*each) for each in both]
        weights = [max(slot) for slot in zip_longest(*sizes, fillvalue=0)]
        largest = max(_elements(*each) for each in both)
        carried = {
            name: elements
            for program, shape in both
            for name, elements in carried_elements(program, precision).items()
            if any(name in program.sub_models[s].parameter_names for s in shape.mine)
        }
        rounds = gradients != torch.float32
        summing, leaving = (1, GRADIENT_SLOTS) if rounds else (GRADIENT_SLOTS, 0)
        made = cls(
            tuple(device.slot_memory(elements, precision) for elements in weights),
            tuple(device.slot_memory(largest, torch.float32) for _ in range(summing)),
            tuple(device.slot_memory(largest, gradients) for _ in range(leaving)),
            {name: device.slot_memory(n, torch.float32) for name, n in carried.items()},
            {program.sub_models: shape for program, shape in both},
            BoundaryMemory.allocate(shapes, device, micro_batches),
        )
        waiting = {} if is_only else waiting_elements(programs[0], precision)
        for sub_model in waiting.keys() & set(shapes[0].mine):
            made.waiting[sub_model] = device.host_memory(waiting[sub_model], gradients)
        device.reserve_gradients(GRADIENT_SLOTS, largest, gradients)
        return made

    def give_back(self, device: Device) -> None:
        """The device's memory is free for others. Between passes; `take_again` before the next."""
        self.tags.clear()
        device.give_back(self._on_device())

    def take_again(self, device: Device) -> None:
        """Raises: out of memory, without having taken any."""
        device.take_again(self._on_device())

    def _on_device(self) -> list[torch.Tensor]:
        gradients = *self.gradients, *self.leaving, *self.carried.values()
        return [*self.weights, *gradients, *self.boundary.ring, *self.state]

    def shape_of(self, program: Program) -> Shape:
        """Raises: ValueError for a program that the slots were not made for."""
        if program.sub_models not in self.shapes:
            raise ValueError("the slots were not made for this program")
        return self.shapes[program.sub_models]


def gradient_slot_bytes(elements: int) -> int:
    """Device memory for gradients, where a sub-model trains at most so many `elements`. If they
    leave in bfloat16, one slot to sum in and two to round in take as much as two to sum in."""
    return GRADIENT_SLOTS * elements * FLOAT32_BYTES


def users_of_parameters(sub_models: Sequence[SubModel]) -> dict[str, list[int]]:
    """Per parameter the sub-models that use it, ascending."""
    users: dict[str, list[int]] = {}
    for sub_model in sub_models:
        for name in sub_model.parameter_names:
            users.setdefault(name, []).append(sub_model.index)
    return users


def carried_elements(program: Program, precision: torch.dtype) -> dict[str, int]:
    """Of parameters whose sums go on from one sub-model to the next, padded."""
    if precision != torch.float32:
        return {}
    several = {n: u for n, u in users_of_parameters(program.sub_models).items() if len(u) > 1}
    specs = (program.layout.by_name[name] for name in several)
    return {spec.name: padded_elements(spec.numel) for spec in specs if not spec.frozen}


def waiting_elements(program: Program, precision: torch.dtype) -> dict[int, int]:
    """Per sub-model, of parameters that an earlier one uses too, padded: where several devices fill
    one store, their sums wait on the host for that one's. None where sums are carried."""
    users = users_of_parameters(program.sub_models)
    carried = carried_elements(program, precision)
    found = dict[int, int]()
    for name, using in users.items():
        spec = program.layout.by_name[name]
        for sub_model in using[1:] if name not in carried and not spec.frozen else ():
            found[sub_model] = found.get(sub_model, 0) + padded_elements(spec.numel)
    return found


def staging_bytes(program: Program, gradients: torch.dtype = torch.float32) -> int:
    """Host memory in which a GPU's gradients land before they are added."""
    return (
        GRADIENT_SLOTS * _elements(program, shape_of(program, Arrangement())) * gradients.itemsize
    )


def _shapes(programs: Sequence[Program], arrangement: Arrangement, place: int) -> list[Shape]:
    first = _layouts(programs[0])
    return [
        shape_of(each, arrangement if _layouts(each) == first else other, place=place)
        for each in programs
        for other in [_swapping(each, arrangement)]
    ]


def _swapping(program: Program, arrangement: Arrangement) -> Arrangement:
    """For a program that is cut otherwise: everything swapped, and offloaded if anything is."""
    makers = range(len(program.sub_models)) if arrangement.offloaded else ()
    return Arrangement(
        arrangement.slots,
        offloaded=frozenset(makers),
        least_offloaded_bytes=arrangement.least_offloaded_bytes,
        devices=arrangement.devices,
    )


def _weight_elements(program: Program, shape: Shape) -> list[int]:
    """Per weight slot, what it has to hold."""
    layouts, resident = _layouts(program), shape.arrangement.resident
    swapped = (layouts[s].elements for s in shape.mine if s not in resident)
    shared = [max(swapped, default=0)] * shape.arrangement.slots
    return [*shared, *(layouts[s].elements for s in shape.mine if s in resident)]


def _layouts(program: Program) -> list[SlotLayout]:
    return [SlotLayout.of(part.parameter_names, program.layout) for part in program.sub_models]


def _elements(program: Program, shape: Shape) -> int:
    """Of the visited sub-model that trains most of them."""
    layouts = _layouts(program)
    return max(layouts[s].trained_elements for s in shape.mine)


@dataclass(frozen=True)
class BoundSubModel:
    """A sub-model's module in its slot. The parameters are views: a load changes them in place."""

    sub_model: SubModel
    layout: SlotLayout
    slot: int
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    """By layout name; a parameter tied within the sub-model appears once."""
    copies: tuple[Copy, ...]
    """What a load moves."""


def bind(
    program: Program, factories: Sequence[Factory], slots: DeviceSlots, working: Pieces
) -> list[BoundSubModel]:
    """Builds the module of each sub-model that is visited and binds its parameters to views of its
    slot. Loads copy from `working`.

    Sub-models of one class in one slot share one module. Raises: ValueError for a program that the
    slots were not made for.
    """
    shape = slots.shape_of(program)
    modules: dict[object, nn.Module] = {}
    bound = []
    for sub_model, factory in ((program.sub_models[s], factories[s]) for s in shape.mine):
        slot = shape.slot_of(sub_model.index)
        layout = SlotLayout.of(sub_model.parameter_names, program.layout)
        places = tuple((path, layout.offsets[name]) for path, name in sub_model.parameters)
        key = (sub_model.layers, sub_model.gives, slot, places)
        if key not in modules:
            views = _views(sub_model, program, layout, slots.weights[slot])
            bind_parameters(modules.setdefault(key, factory()), sub_model, views)
        module = modules[key]
        parameters = {name: module.get_parameter(path) for path, name in sub_model.parameters}
        copies = tuple(
            Copy(slots.weights[slot][at : at + source.numel()], source)
            for run in layout.runs
            for start, source in working(*run.stretch)
            for at in [run.slot_offset + start - run.arena_offset]
        )
        bound.append(BoundSubModel(sub_model, layout, slot, module, parameters, copies))
    return bound


def _views(
    sub_model: SubModel, program: Program, layout: SlotLayout, slot: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Of a slot, by name: the sub-model's parameters."""
    specs = (program.layout.by_name[name] for name in sub_model.parameter_names)
    places = ((spec, layout.offsets[spec.name]) for spec in specs)
    return {spec.name: slot[at : at + spec.numel].view(spec.shape) for spec, at in places}
