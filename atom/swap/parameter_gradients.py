"""Parameter gradients on their way from autograd to the host: summed per pass, then sent off.

On the device they are summed in float32, micro-batch by micro-batch, in a flat slot laid out like
the parameters' own.

A parameter that several sub-models use (a tied weight) has a sum in each of them. In half precision
they meet in the arena: the latest user's is added first, the earliest's last. In float32 the bits
are to be those of the uncut model, where autograd adds each gradient to what is there; so the sum
is carried from the later to the earlier user through a host buffer, as a root of the first
micro-batch's backward, and reaches the arena once, with the earliest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atom.graph.ir import ParameterLayout, Program, SubModel, padded_elements
from atom.swap.device import Device, Report
from atom.swap.device_slots import BoundSubModel, DeviceSlots
from atom.swap.host_sums import Gate, HostSum


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
class Terms:
    """Of one pass, for what it adds to the arena."""

    first: bool = False
    """Of its round: it replaces what the arena held."""
    seed: int = 0
    """Where the noise comes from that sums in bfloat16 are rounded with."""


@dataclass(frozen=True)
class _Part:
    """A piece of the gradient slot that leaves in one move."""

    source: Tensor
    destination: Tensor
    """Of the arena, or a carrier."""
    stretch: tuple[int, int] | None
    """Its arena elements; None: it goes to a carrier, where it replaces what was there."""
    role: "_Role"

    def host_sum(self, sub_model: int, terms: Terms) -> HostSum:
        if self.stretch is None:
            return HostSum(self.destination, self.source, replace=True)
        replaces, noise_key = terms.first and self.role.first, _noise_key(terms.seed, sub_model)
        return HostSum(self.destination, self.source, replaces, noise_key, self.stretch[0])


@dataclass(frozen=True)
class _Role:
    """Of a sub-model among those that use a parameter, in the order of the backward."""

    first: bool = True
    last: bool = True


class ParameterGradients:
    """The gradient slots of one program, and where each sub-model's sums go.

    `arena` [layout.total_elements] is float32, or bfloat16: then sums are rounded to nearest before
    they leave, what a first pass leaves is kept as it is, and what is added to it is rounded at
    random (`atom.swap.host_sums.add_rounded`).
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
        tied = [name for name, indices in users.items() if len(indices) > 1 and self._exact]
        carriers = self._carriers = {
            name: device.host_memory(padded_elements(layout.by_name[name].numel), torch.float32)
            for name in tied
        }
        self._places: list[list[_Place]] = []
        self._parts: list[list[_Part]] = []
        for part in bound:
            index = part.sub_model.index
            slot = slots.gradients[index % self._slots]
            incoming = {n: c for n, c in carriers.items() if index in users[n][:-1]}
            outgoing = {n: c for n, c in carriers.items() if index in users[n][1:]}
            self._places.append(_places(part, layout, slot, incoming))
            roles = {} if self._exact else _roles(users, index)
            self._parts.append(_parts(part, layout, slot, arena, outgoing, roles))
        self._late = [_late_slots(users, carriers, s, self._slots) for s in range(len(bound))]
        ends = (p for parts in self._parts for p in parts if p.stretch and p.role.last)
        elements = [p.source.numel() for p in ends]
        assert sum(elements) == layout.total_elements, "every parameter is used, and arrives once"

    def release(self) -> None:
        """Gives its host memory back: nothing is carried any more."""
        for carrier in self._carriers.values():
            self._device.give_back_host(carrier)

    def wait_for_slot(self, sub_model: int) -> None:
        """Returns when the slot's last sums are on the host, and those carried on from there."""
        for slot in (sub_model % self._slots, *self._late[sub_model]):
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
        if micro_batch > 0:
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
        if gradient is None:
            if first and place.carrier is None:
                place.sum.zero_()
        elif first:  # what was carried is in it
            place.sum.copy_(gradient)
            if weight != 1.0:
                place.sum.mul_(weight)
        else:
            place.sum.add_(gradient, alpha=weight)

    def send(self, sub_model: int, gate: Gate, terms: Terms, report: Report | None = None) -> None:
        """Starts adding the sub-model's sums to the host's arena, through the pass's gate."""
        sums = [part.host_sum(sub_model, terms) for part in self._parts[sub_model]]
        self._device.gradients_out(sub_model % self._slots, sums, gate, report)


def carrier_bytes(program: Program) -> int:
    """Host memory for the sums of parameters that several sub-models use, in float32."""
    if program.parameter_dtype != torch.float32:
        return 0
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


def _roles(users: dict[str, list[int]], sub_model: int) -> dict[str, _Role]:
    """Of the parameters that others use too."""
    return {
        name: _Role(first=sub_model == indices[-1], last=sub_model == indices[0])
        for name, indices in users.items()
        if len(indices) > 1 and sub_model in indices
    }


def _late_slots(
    users: dict[str, list[int]], carriers: dict[str, Tensor], sub_model: int, slots: int
) -> tuple[int, ...]:
    """Slots of others whose sums may still be on their way when `sub_model` needs what they carry:
    before that, the slots of all sub-models further on have been waited for."""
    incoming = {user for name in carriers if sub_model in users[name] for user in users[name]}
    near = range(sub_model + 1, sub_model + slots)
    return tuple(user % slots for user in near if user in incoming)


def _parts(
    part: BoundSubModel,
    layout: ParameterLayout,
    slot: Tensor,
    arena: Tensor,
    outgoing: dict[str, Tensor],
    roles: dict[str, _Role],
) -> list[_Part]:
    """To the arena by contiguous run; what goes on to an earlier sub-model to its carrier."""
    parts, runs = [], list[tuple[int, int, int, _Role]]()
    for name, start in part.layout.offsets.items():
        spec, role = layout.by_name[name], roles.get(name, _Role())
        elements = padded_elements(spec.numel)
        if name in outgoing:
            parts.append(_Part(slot[start : start + elements], outgoing[name], None, role))
            continue
        if runs:
            arena_start, slot_start, length, before = runs[-1]
            ends = (arena_start + length, slot_start + length, before)
            if ends == (spec.offset, start, role):
                runs[-1] = (arena_start, slot_start, length + elements, role)
                continue
        runs.append((spec.offset, start, elements, role))
    for arena_start, slot_start, length, role in runs:
        stop = arena_start + length
        source = slot[slot_start : slot_start + length]
        parts.append(_Part(source, arena[arena_start:stop], (arena_start, stop), role))
    return parts


def _noise_key(seed: int, sub_model: int) -> int:
    """64 bits. A tied parameter's sums are added once per user: each with other noise."""
    return (seed + sub_model * 0x9E3779B97F4A7C15) % 2**64
