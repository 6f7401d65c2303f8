"""Parameter gradients on their way from autograd to the host: summed per pass, then sent off.

On the device they are summed in float32, micro-batch by micro-batch, in a flat slot laid out like
the parameters' own. A parameter that several sub-models use (a tied weight) carries its sum from
the later to the earlier one through a host buffer of its own, and reaches the arena once, with
the earliest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from atom.graph.ir import ParameterLayout, Program, SubModel, padded_elements
from atom.swap.device import Device, HostSum, Report, at_once
from atom.swap.device_slots import BoundSubModel, DeviceSlots
from atom.swap.gate import Gate

Landed = Callable[[int, int], None]
"""Told that elements [start, stop) of the arena are as the pass leaves them, by the thread that
added them."""


@dataclass(frozen=True)
class _Place:
    """A parameter and its part of the gradient slot."""

    parameter: nn.Parameter
    sum: Tensor
    """In the parameter's shape."""
    whole: Tensor
    """`sum` and the alignment padding behind it, flat."""
    gap: Tensor
    """That padding: other sub-models wrote here, the arena wants zeros."""
    carrier: Tensor | None
    """Host buffer [like whole] with what later sub-models summed; None: nothing is carried."""


@dataclass(frozen=True)
class _Part:
    """A piece of the gradient slot that leaves in one move."""

    source: Tensor
    destination: Tensor
    """Of the arena, or a carrier."""
    stretch: tuple[int, int] | None
    """Its arena elements; None: it goes to a carrier, where it replaces what was there."""

    def host_sum(self, first: bool, landed: Landed | None) -> HostSum:
        if self.stretch is None:
            return HostSum(self.destination, self.source, replace=True)
        told = at_once if landed is None else partial(landed, *self.stretch)
        return HostSum(self.destination, self.source, first, told)


class ParameterGradients:
    """The gradient slots of one program, and where each sub-model's sums go.

    In float32 a carried sum is a root of the first micro-batch's backward, as in the uncut model.
    In half precision it is added afterwards instead: a root would be rounded to sixteen bits.
    """

    def __init__(
        self,
        bound: Sequence[BoundSubModel],
        layout: ParameterLayout,
        slots: DeviceSlots,
        arena: Tensor,
        device: Device,
    ) -> None:
        self._device = device
        self._slots = len(slots.gradients)
        self._exact = slots.weights[0].dtype == torch.float32
        users = _users([part.sub_model for part in bound])
        carriers = {
            name: device.host_memory(padded_elements(layout.by_name[name].numel), torch.float32)
            for name, indices in users.items()
            if len(indices) > 1
        }
        self._places: list[list[_Place]] = []
        self._parts: list[list[_Part]] = []
        for part in bound:
            index = part.sub_model.index
            slot = slots.gradients[index % self._slots]
            incoming = {n: c for n, c in carriers.items() if index in users[n][:-1]}
            outgoing = {n: c for n, c in carriers.items() if index in users[n][1:]}
            self._places.append(_places(part, layout, slot, incoming))
            self._parts.append(_parts(part, layout, slot, arena, outgoing))
        elements = [p.source.numel() for parts in self._parts for p in parts if p.stretch]
        assert sum(elements) == layout.total_elements, "every parameter is used, and arrives once"

    def wait_for_slot(self, sub_model: int) -> None:
        """Returns when the slot's last sums are on the host, and those carried on from there."""
        carries = any(place.carrier is not None for place in self._places[sub_model])
        for slot in range(self._slots) if carries else (sub_model % self._slots,):
            self._device.wait_gradients_out(slot)

    def begin(self, sub_model: int) -> None:
        """Prepares the slot for the sub-model's first micro-batch. Call where one computes, after
        `wait_for_slot`."""
        for place in self._places[sub_model]:
            if place.gap.numel() > 0:
                place.gap.zero_()
            if place.carrier is not None:
                place.whole.copy_(place.carrier, non_blocking=True)

    def roots(self, sub_model: int, micro_batch: int) -> list[tuple[nn.Parameter, Tensor]]:
        """Gradients that enter this micro-batch's backward as roots."""
        if micro_batch > 0 or not self._exact:
            return []
        return [
            (place.parameter, place.sum)
            for place in self._places[sub_model]
            if place.carrier is not None and place.parameter.requires_grad
        ]

    def take(self, sub_model: int, micro_batch: int, weight: float) -> None:
        """Moves the parameters' `.grad`, times `weight`, into the slot's sums."""
        for place in self._places[sub_model]:
            self._take(place, micro_batch == 0, weight)
            place.parameter.grad = None

    def _take(self, place: _Place, first: bool, weight: float) -> None:
        gradient = place.parameter.grad
        carried = first and place.carrier is not None
        if gradient is None:
            if first and not carried:
                place.sum.zero_()
        elif first and (not carried or self._exact):
            place.sum.copy_(gradient)
            if weight != 1.0:
                place.sum.mul_(weight)
        else:
            place.sum.add_(gradient, alpha=weight)

    def send(
        self,
        sub_model: int,
        first: bool,
        gate: Gate,
        report: Report | None = None,
        landed: Landed | None = None,
    ) -> None:
        """Starts adding the sub-model's sums to the host's arena, through the pass's gate; those of
        the `first` pass replace what it held."""
        sums = [part.host_sum(first, landed) for part in self._parts[sub_model]]
        self._device.gradients_out(sub_model % self._slots, sums, gate, report)


def carrier_bytes(program: Program) -> int:
    """Host memory for the sums of parameters that several sub-models use."""
    shared = (name for name, indices in _users(program.sub_models).items() if len(indices) > 1)
    elements = sum(padded_elements(program.layout.by_name[name].numel) for name in shared)
    return elements * torch.float32.itemsize


def _users(sub_models: Sequence[SubModel]) -> dict[str, list[int]]:
    """Per parameter the sub-models that use it, ascending."""
    users: dict[str, list[int]] = {}
    for sub_model in sub_models:
        for name in dict.fromkeys(name for _, name in sub_model.parameters):
            users.setdefault(name, []).append(sub_model.index)
    return users


def _places(
    part: BoundSubModel, layout: ParameterLayout, slot: Tensor, incoming: dict[str, Tensor]
) -> list[_Place]:
    places = []
    for name, parameter in part.parameters.items():
        spec, start = layout.by_name[name], part.layout.offsets[name]
        whole = slot[start : start + padded_elements(spec.numel)]
        total = whole[: spec.numel].view(spec.shape)
        places.append(_Place(parameter, total, whole, whole[spec.numel :], incoming.get(name)))
    return places


def _parts(
    part: BoundSubModel,
    layout: ParameterLayout,
    slot: Tensor,
    arena: Tensor,
    outgoing: dict[str, Tensor],
) -> list[_Part]:
    """To the arena by contiguous run; what goes on to an earlier sub-model to its carrier."""
    parts, runs = [], list[tuple[int, int, int]]()
    for name, start in part.layout.offsets.items():
        spec = layout.by_name[name]
        elements = padded_elements(spec.numel)
        if name in outgoing:
            parts.append(_Part(slot[start : start + elements], outgoing[name], None))
            continue
        if runs:
            arena_start, slot_start, length = runs[-1]
            if (arena_start + length, slot_start + length) == (spec.offset, start):
                runs[-1] = (arena_start, slot_start, length + elements)
                continue
        runs.append((spec.offset, start, elements))
    for arena_start, slot_start, length in runs:
        stop = arena_start + length
        source = slot[slot_start : slot_start + length]
        parts.append(_Part(source, arena[arena_start:stop], (arena_start, stop)))
    return parts
