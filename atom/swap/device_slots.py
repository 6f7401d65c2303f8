"""Device memory for sub-models: a few flat slots, allocated once, and modules that view them.

The slots that sub-models share come first, then one slot for each resident sub-model. Each slot has
its own storage: a load into it does not change the version counters of the others. So a graph over
a resident sub-model's parameters stays valid while other sub-models are swapped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import le

import torch
from torch import nn

from atom.graph.ir import ParameterLayout, Program, SubModel, padded_elements
from atom.graph.segment import bind as bind_parameters
from atom.swap.boundary_traffic import BoundaryMemory
from atom.swap.device import Copy, Device
from atom.swap.schedule import GRADIENT_SLOTS, Arrangement, Shape, shape_of, users_of

FLOAT32_BYTES = torch.float32.itemsize

Pieces = Callable[[int, int], Iterable[tuple[int, torch.Tensor]]]
"""Function that returns the pieces of an arena's elements [start, stop), in order.

Each piece comes with the number of its first element. It is a view of host memory or of device
memory, where these elements are stored.
"""
Factory = Callable[[], nn.Module]
"""Function that builds a sub-model's module: parameters without memory, constants on the device."""


@dataclass(frozen=True)
class Run:
    """Contiguous elements of the arena that a sub-model uses; one copy moves them."""

    arena_offset: int
    slot_offset: int
    elements: int

    @property
    def stretch(self) -> tuple[int, int]:
        """Arena elements [start, stop) of the run."""
        return self.arena_offset, self.arena_offset + self.elements


@dataclass(frozen=True)
class SlotLayout:
    """Positions of a sub-model's parameters in a flat slot; one position for each parameter.

    Parameters keep the arena's order and alignment, so neighbours in the arena are neighbours in
    the slot and are copied together.
    """

    offsets: dict[str, int]
    """Slot offset by parameter name."""
    runs: tuple[Run, ...]
    elements: int
    trained_elements: int
    """Elements of trained parameters, which precede the frozen ones."""

    @classmethod
    def of(cls, names: Iterable[str], layout: ParameterLayout) -> "SlotLayout":
        """Return the slot layout of the parameters with these names."""
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
"""Content of a slot: sub-model, its arena elements, and the version of the host's store.

Programs that cut the model in the same way can use each other's loads.
"""


@dataclass
class DeviceSlots:
    """Flat slots on the device, shared by all programs of a replica (training, evaluation)."""

    weights: tuple[torch.Tensor, ...]
    """Weight slots in the computing precision: shared slots, then one per resident sub-model.

    A shared slot has the elements of the largest swapped sub-model, a resident's slot its own.
    """
    gradients: tuple[torch.Tensor, ...]
    """Gradient slots, float32, each with the most elements that one sub-model trains.

    One slot is enough where sums are rounded before they leave.
    """
    leaving: tuple[torch.Tensor, ...]
    """Slots of the same size for rounded sums that leave; none if sums leave in float32."""
    carried: dict[str, torch.Tensor]
    """Sums of parameters that several sub-models share, [padded elements] float32 by name.

    They exist only in float32, where one sub-model continues the sum of another.
    """
    shape_of: Callable[[Program], Shape]
    """Function that returns the shape of a program, with one micro-batch, in these slots."""
    boundary: BoundaryMemory
    """Memory for offloaded values between sub-models."""
    tags: dict[int, Tag] = field(default_factory=dict)
    """Content of each weight slot; absent while the content is not valid."""
    state: list[torch.Tensor] = field(default_factory=list)
    """Memory of the device state (`DeviceState.memory`), given back along with the slots."""
    waiting: dict[int, torch.Tensor] = field(default_factory=dict)
    """Host memory by sub-model for sums that wait for an earlier sub-model (`waiting_elements`).

    Gradients that leave have the same dtype. It is empty if no other device fills the same store.
    """

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
        """Allocate the slots in which programs run.

        The first program runs as `arrangement` says. Other programs with the same cut (evaluation
        without dropout, or without the last sub-models and some parameters) run in the very same
        slots. A program with another cut has no resident sub-models; it is swapped through the
        shared slots, which are made large enough.

        Args:
            programs: Programs that use the slots.
            device: Device that has the slots.
            precision: Dtype of the weights.
            arrangement: Use of the device; None: every sub-model is swapped.
            micro_batches: Most micro-batches of a pass, if values are offloaded.
            gradients: Dtype in which gradients leave the device.
            is_only: True if no other device fills the same store.
            place: Index of the device in its group.

        Raises:
            ValueError: The arrangement names sub-models that the program does not have, or has more
                devices than sub-models.
        """
        arrangement = arrangement or Arrangement()
        shapes = _shapes(programs, arrangement, place)
        pairs = list(zip(programs, shapes, strict=True))
        sizes = [_weight_elements(*each) for each in pairs]
        weights = [max(slot) for slot in zip_longest(*sizes, fillvalue=0)]
        largest = max(_largest(*each) for each in pairs)
        carried = {
            name: elements
            for program, shape in pairs
            for name, elements in carried_elements(program, precision).items()
            if any(name in program.sub_models[s].parameter_names for s in shape.local)
        }
        rounds = gradients != torch.float32
        summing, leaving = (1, GRADIENT_SLOTS) if rounds else (GRADIENT_SLOTS, 0)
        slots = cls(
            tuple(device.slot_memory(elements, precision) for elements in weights),
            tuple(device.slot_memory(largest, torch.float32) for _ in range(summing)),
            tuple(device.slot_memory(largest, gradients) for _ in range(leaving)),
            {name: device.slot_memory(n, torch.float32) for name, n in carried.items()},
            lambda program: _shapes([programs[0], program], arrangement, place)[1],
            BoundaryMemory.allocate(shapes, device, micro_batches),
        )
        waiting = {} if is_only else waiting_elements(programs[0], precision)
        for sub_model in waiting.keys() & set(shapes[0].local):
            slots.waiting[sub_model] = device.host_memory(waiting[sub_model], gradients)
        device.reserve_gradients(GRADIENT_SLOTS, largest, gradients)
        return slots

    def give_back(self, device: Device) -> None:
        """Release the device's memory for other programs, between passes.

        Call `take_again` before the next pass.
        """
        self.tags.clear()
        device.give_back(self._on_device())

    def take_again(self, device: Device) -> None:
        """Allocate the slots again: all of them, or none if the device is out of memory."""
        device.take_again(self._on_device())

    def _on_device(self) -> list[torch.Tensor]:
        gradients = *self.gradients, *self.leaving, *self.carried.values()
        return [*self.weights, *gradients, *self.boundary.ring, *self.state]


def gradient_slot_bytes(elements: int) -> int:
    """Return the device memory for gradients if a sub-model trains at most `elements` elements.

    If gradients leave in bfloat16, one slot for sums and two for rounded sums take as much as two
    slots for sums.
    """
    return GRADIENT_SLOTS * elements * FLOAT32_BYTES


def users_of_parameters(sub_models: Sequence[SubModel]) -> dict[str, list[int]]:
    """Return the sub-models that use each parameter, ascending, by the parameter's name."""
    return users_of(sub_models, lambda sub_model: sub_model.parameter_names)


def carried_elements(program: Program, precision: torch.dtype) -> dict[str, int]:
    """Return padded elements, by name, of parameters whose sums one sub-model hands to another."""
    if precision != torch.float32:
        return {}
    shared = {n: u for n, u in users_of_parameters(program.sub_models).items() if len(u) > 1}
    specs = (program.layout.by_name[name] for name in shared)
    return {spec.name: padded_elements(spec.numel) for spec in specs if not spec.frozen}


def waiting_elements(program: Program, precision: torch.dtype) -> dict[int, int]:
    """Return, by sub-model, the padded elements of parameters that an earlier sub-model uses too.

    If several devices fill one store, the sums of these parameters wait on the host for the sums of
    the earliest user. Carried sums do not wait, so they are not counted.
    """
    users = users_of_parameters(program.sub_models)
    carried = carried_elements(program, precision)
    found = dict[int, int]()
    for name, using in users.items():
        spec = program.layout.by_name[name]
        for sub_model in using[1:] if name not in carried and not spec.frozen else ():
            found[sub_model] = found.get(sub_model, 0) + padded_elements(spec.numel)
    return found


def staging_bytes(program: Program, gradients: torch.dtype = torch.float32) -> int:
    """Return the host memory to which a GPU copies gradients before they are added."""
    return GRADIENT_SLOTS * _largest(program, shape_of(program, Arrangement())) * gradients.itemsize


def _shapes(programs: Sequence[Program], arrangement: Arrangement, place: int) -> list[Shape]:
    names = [[{*part.parameter_names} for part in each.sub_models] for each in programs]
    alike = [len(each) <= len(names[0]) and all(map(le, each, names[0])) for each in names]
    return [
        shape_of(each, (_within if same else _all_swapped)(each, arrangement), place=place)
        for each, same in zip(programs, alike, strict=True)
    ]


def _within(program: Program, arrangement: Arrangement) -> Arrangement:
    """Return the arrangement of the first sub-models, which are all that the program has."""
    count, fields = len(program.sub_models), ("resident", "kept", "offloaded", "trained")
    every = {name: getattr(arrangement, name) for name in fields}
    return replace(arrangement, **{n: each & frozenset(range(count)) for n, each in every.items()})


def _all_swapped(program: Program, arrangement: Arrangement) -> Arrangement:
    """Return the arrangement of a program with another cut.

    All sub-models are swapped; all values are offloaded if `arrangement` offloads any.
    """
    makers = range(len(program.sub_models)) if arrangement.offloaded else ()
    return Arrangement(
        arrangement.slots,
        offloaded=frozenset(makers),
        least_offloaded_bytes=arrangement.least_offloaded_bytes,
        devices=arrangement.devices,
    )


def _weight_elements(program: Program, shape: Shape) -> list[int]:
    """Return the elements of each weight slot that the program needs."""
    layouts, resident = _layouts(program), shape.arrangement.resident
    swapped = (layouts[s].elements for s in shape.local if s not in resident)
    shared = [max(swapped, default=0)] * shape.arrangement.slots
    return [*shared, *(layouts[s].elements for s in shape.local if s in resident)]


def _layouts(program: Program) -> list[SlotLayout]:
    return [SlotLayout.of(part.parameter_names, program.layout) for part in program.sub_models]


def _largest(program: Program, shape: Shape) -> int:
    """Return the trained elements of the visited sub-model that has most of them."""
    layouts = _layouts(program)
    return max(layouts[s].trained_elements for s in shape.local)


@dataclass(frozen=True)
class BoundSubModel:
    """Module of a sub-model in its slot.

    Its parameters are views, which a load changes in place.
    """

    sub_model: SubModel
    layout: SlotLayout
    slot: int
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    """Parameters by layout name; a parameter tied within the sub-model appears once."""
    copies: tuple[Copy, ...]
    """Copies that make up a load."""


def bind(
    program: Program, factories: Sequence[Factory], slots: DeviceSlots, working: Pieces
) -> list[BoundSubModel]:
    """Build the module of each visited sub-model, with parameters that view its slot.

    Sub-models of one class in one slot share a module.

    Args:
        program: Program to run.
        factories: Builder of each sub-model's module.
        slots: Slots of the program's sub-models.
        working: Pieces of the weights that loads copy from.

    Raises:
        ValueError: The slots are too small for the program.
    """
    shape = slots.shape_of(program)
    modules: dict[object, nn.Module] = {}
    bound = []
    for sub_model, factory in ((program.sub_models[s], factories[s]) for s in shape.local):
        slot = shape.slot_of(sub_model.index)
        layout = SlotLayout.of(sub_model.parameter_names, program.layout)
        if layout.elements > slots.weights[slot].numel():
            raise ValueError("the device slots were not made for this program")
        places = tuple((path, layout.offsets[name]) for path, name in sub_model.parameters)
        key = (sub_model.layers, sub_model.gives, slot, places)
        if key not in modules:
            views = _views(sub_model, program, layout, slots.weights[slot])
            bind_parameters(modules.setdefault(key, factory()), sub_model, views)
        module = modules[key]
        parameters = {name: module.get_parameter(path) for path, name in sub_model.parameters}
        copies = tuple(
            (slots.weights[slot][at : at + source.numel()], source)
            for run in layout.runs
            for start, source in working(*run.stretch)
            for at in [run.slot_offset + start - run.arena_offset]
        )
        bound.append(BoundSubModel(sub_model, layout, slot, module, parameters, copies))
    return bound


def _views(
    sub_model: SubModel, program: Program, layout: SlotLayout, slot: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return views of the slot for the sub-model's parameters, by name."""
    specs = (program.layout.by_name[name] for name in sub_model.parameter_names)
    places = ((spec, layout.offsets[spec.name]) for spec in specs)
    return {spec.name: slot[at : at + spec.numel].view(spec.shape) for spec, at in places}
