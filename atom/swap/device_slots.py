"""Device memory for sub-models: a few flat slots, reused for ever, with modules that view them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from atom.graph.ir import ALIGNMENT_ELEMENTS, ParameterLayout, Program, SubModel
from atom.swap.device import Copy, Device
from atom.swap.schedule import MINIMUM_SLOTS

GRADIENT_SLOTS = 2
"""One leaves for the host while the next is summed."""


Factory = Callable[[], nn.Module]
"""Builds a sub-model's module: parameters without memory, constants on the device."""


@dataclass(frozen=True)
class Run:
    """A contiguous piece of the arena that a sub-model uses: one copy moves it."""

    arena_offset: int
    slot_offset: int
    elements: int


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

    @classmethod
    def of(cls, sub_model: SubModel, layout: ParameterLayout) -> "SlotLayout":
        names = {name for _, name in sub_model.parameters}
        specs = sorted((layout.by_name[name] for name in names), key=lambda spec: spec.offset)
        offsets: dict[str, int] = {}
        runs: list[Run] = []
        used = 0
        for spec in specs:
            padded = padded_elements(spec.numel)
            offsets[spec.name] = used
            if runs and runs[-1].arena_offset + runs[-1].elements == spec.offset:
                last = runs[-1]
                runs[-1] = Run(last.arena_offset, last.slot_offset, last.elements + padded)
            else:
                runs.append(Run(spec.offset, used, padded))
            used += padded
        return cls(offsets, tuple(runs), used)


def padded_elements(numel: int) -> int:
    """Elements a parameter takes up in an arena or slot, padding included."""
    return -(-numel // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS


@dataclass(frozen=True)
class Tag:
    """What a slot holds: which program's sub-model, as of which version of the host's store."""

    source_hash: str
    sub_model: int
    version: int


@dataclass
class DeviceSlots:
    """Flat slots on the device, shared by all programs of one replica (training, evaluation)."""

    weights: tuple[torch.Tensor, ...]
    """[largest sub-model's elements] each, in the computing precision."""
    gradients: tuple[torch.Tensor, ...]
    """[largest sub-model's elements] each, float32."""
    tags: dict[int, Tag] = field(default_factory=dict)
    """Per weight slot: what it holds. Absent while its content is not to be trusted."""

    @classmethod
    def allocate(
        cls,
        programs: Sequence[Program],
        device: Device,
        precision: torch.dtype,
        slots: int = MINIMUM_SLOTS,
    ) -> "DeviceSlots":
        """Slots large enough for every sub-model of `programs`. Raises: ValueError below two."""
        if slots < MINIMUM_SLOTS:
            raise ValueError(f"{slots} slots: swapping needs at least {MINIMUM_SLOTS}")
        elements = max(largest_elements(program) for program in programs)
        device.reserve_gradients(GRADIENT_SLOTS, elements)
        return cls(
            tuple(device.slot_memory(elements, precision) for _ in range(slots)),
            tuple(device.slot_memory(elements, torch.float32) for _ in range(GRADIENT_SLOTS)),
        )


def largest_elements(program: Program) -> int:
    """Elements a slot needs for any sub-model of the program."""
    return max(SlotLayout.of(part, program.layout).elements for part in program.sub_models)


def device_bytes(program: Program, precision: torch.dtype, slots: int = MINIMUM_SLOTS) -> int:
    """What `DeviceSlots.allocate` takes on the device; activations come on top."""
    per_element = slots * precision.itemsize + GRADIENT_SLOTS * torch.float32.itemsize
    return largest_elements(program) * per_element


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
    program: Program, factories: Sequence[Factory], slots: DeviceSlots, working: torch.Tensor
) -> list[BoundSubModel]:
    """Builds every sub-model's module and binds its parameters to views of its slot.

    Sub-models of one class in one slot share one module. Sub-model s uses slot s % len(slots).
    """
    modules: dict[object, tuple[nn.Module, dict[str, nn.Parameter]]] = {}
    bound = []
    for sub_model, factory in zip(program.sub_models, factories, strict=True):
        slot = sub_model.index % len(slots.weights)
        layout = SlotLayout.of(sub_model, program.layout)
        places = tuple((path, layout.offsets[name]) for path, name in sub_model.parameters)
        key = (sub_model.class_name, slot, places)
        if key not in modules:
            modules[key] = _build(factory, sub_model, program, layout, slots.weights[slot])
        module, by_path = modules[key]
        parameters = {name: by_path[path] for path, name in sub_model.parameters}
        copies = tuple(
            Copy(
                slots.weights[slot][run.slot_offset : run.slot_offset + run.elements],
                working[run.arena_offset : run.arena_offset + run.elements],
            )
            for run in layout.runs
        )
        bound.append(BoundSubModel(sub_model, layout, slot, module, parameters, copies))
    return bound


def _build(
    factory: Factory,
    sub_model: SubModel,
    program: Program,
    layout: SlotLayout,
    slot: torch.Tensor,
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The module and its parameters by attribute path; equal offsets share one parameter."""
    module = factory()
    by_offset: dict[int, nn.Parameter] = {}
    by_path: dict[str, nn.Parameter] = {}
    for path, name in sub_model.parameters:
        spec, offset = program.layout.by_name[name], layout.offsets[name]
        view = slot[offset : offset + spec.numel].view(spec.shape)
        owner_path, _, attribute = path.rpartition(".")
        owner = module.get_submodule(owner_path)
        needs_grad = owner.get_parameter(attribute).requires_grad
        if offset not in by_offset:
            by_offset[offset] = nn.Parameter(view, requires_grad=needs_grad)
        setattr(owner, attribute, by_offset[offset])
        by_path[path] = by_offset[offset]
    return module, by_path
