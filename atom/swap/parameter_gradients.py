"""Parameter gradients on their way from autograd to the host: summed per pass, then sent off.

On the device they are summed in float32, micro-batch by micro-batch, in a flat slot laid out like
the parameters' own. If they leave in bfloat16, the pass's sum is rounded to nearest in a slot of
its own, where it is computed: the one it was summed in is free then.

A parameter that several sub-models use (a tied weight) has a sum in each of them. In half precision
they meet in the arena: the latest user's is added first, the earliest's last. In float32 the bits
are to be those of the uncut model, where autograd adds each gradient to what is there; so there is
one sum for all of them, beside the slots. To the earlier user's backward it is a root of the first
micro-batch, and it reaches the arena once, with the earliest.

Where several devices fill one arena, what a later user sums waits on the host for the earliest one,
so that all of a pass is added before the next pass's: else that one would wait for a whole pass.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from atom.graph.ir import ParameterLayout, padded_elements
from atom.swap.device import Device, Report
from atom.swap.device_slots import (
    BoundSubModel,
    DeviceSlots,
    Pieces,
    users_of_parameters,
)
from atom.swap.host_sums import Gate, HostSum
from atom.swap.schedule import GRADIENT_SLOTS, Shape


@dataclass(frozen=True)
class _Place:
    """A parameter and its sum."""

    parameter: nn.Parameter
    sum: Tensor
    """In the parameter's shape."""
    gap: Tensor
    """The alignment padding behind it in the slot: other sub-models wrote here, the arena wants
    zeros."""
    continues: bool
    """Does it go on with what later sub-models summed?"""


class ParameterGradients:
    """The gradient slots of one program on one device, and where each sub-model's sums go.

    `arena` [layout.trained_elements] is float32, or bfloat16: then what a first pass leaves is kept
    as it is, and what is added to it is rounded at random (`atom.swap.host_sums.add_rounded`).
    """

    def __init__(
        self,
        bound: Sequence[BoundSubModel],
        layout: ParameterLayout,
        slots: DeviceSlots,
        arena: Pieces,
        device: Device,
        shape: Shape,
    ) -> None:
        self._device, self._shape = device, shape
        self._leaving = slots.leaving
        users = users_of_parameters([part.sub_model for part in bound])
        self._places: dict[int, list[_Place]] = {}
        """By sub-model, as the two below."""
        self._parts: dict[int, list[HostSum]] = {s: [] for s in shape.mine}
        """What reaches the arena, each in one move. `replace`: no later sub-model adds to it
        before. `noise_key`: what a pass's is that much more than its seed."""
        self._waiting: dict[int, list[HostSum]] = {s: [] for s in shape.mine}
        """What leaves, and waits for an earlier sub-model."""
        for part in bound:
            index = part.sub_model.index
            slot = slots.gradients[shape.gradient_slot_of(index) % len(slots.gradients)]
            self._places[index] = _places(part, layout, slot, slots.carried, users)
        for part in reversed(bound):  # as they are added
            index = part.sub_model.index
            slot = slots.gradients[shape.gradient_slot_of(index) % len(slots.gradients)]
            for first, whole, replaces, earliest in _parts(
                part, layout, slot, slots.carried, users
            ):
                for start, to in arena(first, first + whole.numel()):
                    source = whole[start - first : start - first + to.numel()]
                    self._bring(index, earliest, slots, HostSum(to, source, replaces, first=start))
        parts = itertools.chain.from_iterable(self._parts.values())
        elements = sum(part.source.numel() for part in parts if part.replace)
        trained = (layout.by_name[name] for name in users if not layout.by_name[name].frozen)
        wanted = sum(padded_elements(spec.numel) for spec in trained)
        assert elements == wanted, "every parameter is used, and arrives"

    def _bring(self, sub_model: int, earliest: int, slots: DeviceSlots, part: HostSum) -> None:
        """A part of the `sub_model`'s sums reaches the arena with it, or waits for the `earliest`
        of those that have some for the same parameters."""
        # Added once per user: each with other noise.
        to = replace(part, noise_key=sub_model * 0x9E3779B97F4A7C15, last=sub_model == earliest)
        if to.last or not slots.waiting:
            self._parts[sub_model].append(replace(to, sub_model=sub_model))
            return
        waiting = self._waiting[sub_model]
        used = sum(each.source.numel() for each in waiting)
        place = slots.waiting[sub_model][used : used + part.source.numel()]
        waiting.append(HostSum(place, part.source, True, sub_model=sub_model, waits=True))
        self._parts[earliest].append(replace(to, source=place, sub_model=earliest, is_here=True))

    @property
    def landing(self) -> list[int]:
        """The sub-models with which something reaches the arena."""
        return [index for index, parts in self._parts.items() if parts]

    def wait_for_slot(self, sub_model: int) -> None:
        """What is computed from now on comes after the slot's last sums have left; at the
        beginning of a backward, all of the pass before."""
        begins = sub_model == self._shape.mine[-1]
        own = [self._shape.gradient_slot_of(sub_model)]
        for slot in range(GRADIENT_SLOTS) if begins else own:
            self._device.wait_gradients_out(slot)

    def begin(self, sub_model: int) -> None:
        """Prepares the slot for the sub-model's first micro-batch. Call where one computes, after
        `wait_for_slot`."""
        for place in self._places[sub_model]:
            if place.gap.numel() > 0:
                place.gap.zero_()

    def roots(
        self, sub_model: int, micro_batch: int, weight: float
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Gradients that enter this micro-batch's backward as roots; `take` follows, with the same
        weight."""
        if micro_batch > 0:
            return []
        roots = [
            (place.parameter, place.sum) for place in self._places[sub_model] if place.continues
        ]
        for _, total in roots:
            if weight != 1.0:
                total.div_(weight)
        return roots

    def take(self, sub_model: int, micro_batch: int, weight: float) -> None:
        """Moves the parameters' `.grad`, times `weight`, into the slot's sums."""
        for place in self._places[sub_model]:
            self._take(place, micro_batch == 0, weight)
            place.parameter.grad = None

    def _take(self, place: _Place, first: bool, weight: float) -> None:
        gradient = place.parameter.grad
        if gradient is None:
            if first and not place.continues:
                place.sum.zero_()
        elif first:  # what it goes on with is in it
            place.sum.copy_(gradient)
            if weight != 1.0:
                place.sum.mul_(weight)
        else:
            place.sum.add_(gradient, alpha=weight)

    def send(
        self,
        sub_model: int,
        gate: Gate,
        first_pass: bool,
        seed: int,
        report: Report | None = None,
        added: Report | None = None,
    ) -> None:
        """Starts adding the sub-model's sums to the host's arena, through the pass's gate. Call
        where one computes.

        `first_pass`: of its round, it replaces what the arena held. `seed`: where the noise comes
        from that sums in bfloat16 are rounded with.
        """
        sums = list(self._waiting[sub_model])
        if not gate.has_landed(sub_model):
            sums += (
                replace(
                    part,
                    replace=first_pass and part.replace,
                    noise_key=(seed + part.noise_key) % 2**64,
                )
                for part in self._parts[sub_model]
            )
        slot = self._shape.gradient_slot_of(sub_model)
        if self._leaving:
            sums = rounded(sums, self._leaving[slot])
        self._device.gradients_out(slot, sums, gate, report, added)


def rounded(sums: Sequence[HostSum], slot: Tensor) -> list[HostSum]:
    """The same sums, rounded to nearest, one behind the other in the slot."""
    found, offset = [], 0
    for part in sums:
        if part.is_here:
            found.append(part)
            continue
        end = offset + part.source.numel()
        found.append(replace(part, source=slot[offset:end].copy_(part.source)))
        offset = end
    return found


_Users = dict[str, list[int]]


def _places(
    part: BoundSubModel,
    layout: ParameterLayout,
    slot: Tensor,
    carried: dict[str, Tensor],
    users: _Users,
) -> list[_Place]:
    places = []
    for name, parameter in part.parameters.items():
        spec, start = layout.by_name[name], part.layout.offsets[name]
        if spec.frozen:
            continue
        whole = slot[start : start + padded_elements(spec.numel)]
        of = carried.get(name, whole)[: spec.numel].view(spec.shape)
        gap = whole[spec.numel :] if name not in carried else whole[:0]
        continues = name in carried and part.sub_model.index < users[name][-1]
        places.append(_Place(parameter, of, gap, continues))
    return places


def _parts(
    part: BoundSubModel,
    layout: ParameterLayout,
    slot: Tensor,
    carried: dict[str, Tensor],
    users: _Users,
) -> list[tuple[int, Tensor, bool, int]]:
    """By contiguous run of the arena: where it begins, the sums, whether they replace what is there
    in a first pass, and the earliest sub-model that has some for it. A carried sum leaves with that
    one."""
    parts, runs = [], list[tuple[int, int, int, tuple[bool, int]]]()
    for name, start in part.layout.offsets.items():
        spec, used = layout.by_name[name], users[name]
        if spec.frozen:
            continue
        elements = padded_elements(spec.numel)
        if name in carried:
            if part.sub_model.index == used[0]:
                parts.append((spec.offset, carried[name], True, used[0]))
            continue
        whose = part.sub_model.index == used[-1], used[0]
        if runs:
            arena_start, slot_start, length, before = runs[-1]
            ends = (arena_start + length, slot_start + length, before)
            if ends == (spec.offset, start, whose):
                runs[-1] = (arena_start, slot_start, length + elements, whose)
                continue
        runs.append((spec.offset, start, elements, whose))
    for arena_start, slot_start, length, whose in runs:
        parts.append((arena_start, slot[slot_start : slot_start + length], *whose))
    return parts
