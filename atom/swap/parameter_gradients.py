"""Parameter gradients on their way from autograd to the host: summed over a pass, then sent.

On the device they are summed in float32, micro-batch by micro-batch, in a flat slot with the layout
of the parameters' slot. If gradients leave in bfloat16, the pass's sum is rounded to nearest into
another slot by the compute stream. The slot of the sum is free afterwards.

A parameter that several sub-models use (a tied weight) has a sum in each of them. In 16-bit
precisions they are added in the arena: the last user's sum first, the first user's sum last. In
float32 the bits must equal the uncut model's, where autograd adds each gradient to the previous
sum. Therefore all users share one sum, outside the slots. In the backward of an earlier user it
enters as a root of the first micro-batch, and it leaves once, with the first user.

If several devices fill one arena, the sum of a later user waits on the host for the first user. So
all sums of one pass are added before the next pass's. Otherwise the next pass would wait for nearly
a whole pass.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from atom.graph.ir import ParameterLayout, padded_elements
from atom.swap.device import Device, Report
from atom.swap.device_slots import BoundSubModel, DeviceSlots, Pieces, users_of_parameters
from atom.swap.host_sums import Gate, HostSum
from atom.swap.schedule import GRADIENT_SLOTS, Shape


@dataclass(frozen=True)
class _Place:
    """A parameter and the sum of its gradients."""

    parameter: nn.Parameter
    sum: Tensor
    """Sum of the gradients, in the parameter's shape."""
    gap: Tensor
    """Alignment padding after the sum in the slot.

    Other sub-models wrote there, and the arena requires zeros.
    """
    continues: bool
    """True if the sum continues the sum of later sub-models."""


class ParameterGradients:
    """Gradient slots of one program on one device, and the destination of each sub-model's sums.

    The arena [layout.trained_elements] is float32 or bfloat16. In bfloat16 the sums of a first pass
    are stored as they are, and later sums are added with stochastic rounding
    (`atom.swap.host_sums.add`).
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
        """Find the place of each sum in the slots and in the arena.

        Args:
            bound: Sub-models of this device.
            layout: Layout of the parameters.
            slots: Memory on the device.
            arena: Pieces of the gradient arena.
            device: Device that moves the sums.
            shape: Shape of the program's passes.
        """
        self._device, self._shape, self._layout, self._slots = device, shape, layout, slots
        self._leaving = slots.leaving
        self._users = users_of_parameters([part.sub_model for part in bound])
        self._places = {part.sub_model.index: list(self._places_of(part)) for part in bound}
        """Parameters and their sums, by sub-model."""
        self._parts: dict[int, list[HostSum]] = {s: [] for s in shape.local}
        """Additions to the arena, by sub-model.

        `replace` is set if no later sub-model adds to the same elements before. `noise_key` is the
        difference between the key of a pass and its seed.
        """
        self._waiting: dict[int, list[HostSum]] = {s: [] for s in shape.local}
        """Copies to the host, by sub-model, of sums that wait there for an earlier sub-model."""
        for part in reversed(bound):  # in the order of additions
            for first, whole, replaces, earliest in self._runs_of(part):
                for start, to in arena(first, first + whole.numel()):
                    source = whole[start - first : start - first + to.numel()]
                    added = HostSum(to, source, replaces, first=start)
                    self._route(part.sub_model.index, earliest, added)
        parts = itertools.chain.from_iterable(self._parts.values())
        elements = sum(part.source.numel() for part in parts if part.replace)
        trained = (layout.by_name[name] for name in self._users if not layout.by_name[name].frozen)
        expected = sum(padded_elements(spec.numel) for spec in trained)
        assert elements == expected, "every trained parameter reaches the arena once"

    def _slot_of(self, part: BoundSubModel) -> Tensor:
        slots = self._slots.gradients
        return slots[self._shape.gradient_slot_of(part.sub_model.index) % len(slots)]

    def _places_of(self, part: BoundSubModel) -> Iterator[_Place]:
        carried, slot = self._slots.carried, self._slot_of(part)
        for name, parameter in part.parameters.items():
            spec, start = self._layout.by_name[name], part.layout.offsets[name]
            if spec.frozen:
                continue
            whole = slot[start : start + padded_elements(spec.numel)]
            of = carried.get(name, whole)[: spec.numel].view(spec.shape)
            gap = whole[spec.numel :] if name not in carried else whole[:0]
            continues = name in carried and part.sub_model.index < self._users[name][-1]
            yield _Place(parameter, of, gap, continues)

    def _runs_of(self, part: BoundSubModel) -> list[tuple[int, Tensor, bool, int]]:
        """Return a sub-model's sums as contiguous runs of the arena.

        Each run comes with the number of its first element, whether it replaces the arena's content
        in a first pass, and the earliest sub-model that has sums for it. A carried sum is a run of
        its first user.
        """
        found, runs = [], list[tuple[int, int, int, tuple[bool, int]]]()
        carried, slot = self._slots.carried, self._slot_of(part)
        for name, start in part.layout.offsets.items():
            spec, used = self._layout.by_name[name], self._users[name]
            if spec.frozen:
                continue
            elements = padded_elements(spec.numel)
            if name in carried:
                if part.sub_model.index == used[0]:
                    found.append((spec.offset, carried[name], True, used[0]))
                continue
            key = part.sub_model.index == used[-1], used[0]
            if runs:
                arena_start, slot_start, length, before = runs[-1]
                ends = (arena_start + length, slot_start + length, before)
                if ends == (spec.offset, start, key):
                    runs[-1] = (arena_start, slot_start, length + elements, key)
                    continue
            runs.append((spec.offset, start, elements, key))
        found += ((a, slot[at : at + length], *key) for a, at, length, key in runs)
        return found

    def _route(self, sub_model: int, earliest: int, part: HostSum) -> None:
        """Plan the addition of a part of the `sub_model`'s sums.

        The part is added with its sub-model, or waits on the host for the `earliest` user.
        """
        # A shared parameter is added once per user, each time with other noise.
        to = replace(part, noise_key=sub_model * 0x9E3779B97F4A7C15, last=sub_model == earliest)
        if to.last or not self._slots.waiting:
            self._parts[sub_model].append(replace(to, sub_model=sub_model))
            return
        waiting = self._waiting[sub_model]
        used = sum(each.source.numel() for each in waiting)
        place = self._slots.waiting[sub_model][used : used + part.source.numel()]
        waiting.append(HostSum(place, part.source, True, sub_model=sub_model, waits_on_host=True))
        self._parts[earliest].append(replace(to, source=place, sub_model=earliest, on_host=True))

    @property
    def adding(self) -> list[int]:
        """Sub-models whose gradient sums are sent to the host's arena in every pass, ascending."""
        return [index for index, parts in self._parts.items() if parts]

    def wait_for_slot(self, sub_model: int) -> None:
        """Let later operations follow the departure of the slot's previous sums.

        At the beginning of a backward, all sums of the previous pass must have left.
        """
        begins = sub_model == self._shape.local[-1]
        own = [self._shape.gradient_slot_of(sub_model)]
        for slot in range(GRADIENT_SLOTS) if begins else own:
            self._device.wait_gradients_out(slot)

    def begin(self, sub_model: int) -> None:
        """Clear padding in the slot before the sub-model's first micro-batch.

        Call it inside `Device.computing`, after `wait_for_slot`.
        """
        for place in self._places[sub_model]:
            if place.gap.numel() > 0:
                place.gap.zero_()

    def roots(
        self, sub_model: int, micro_batch: int, weight: float
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Return sums that enter this micro-batch's backward as roots, with their parameters.

        Call `take` afterwards, with the same weight.
        """
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
        """Move the parameters' `.grad`, times `weight`, into the sums in the slot."""
        first = micro_batch == 0
        for place in self._places[sub_model]:
            gradient, place.parameter.grad = place.parameter.grad, None
            if gradient is None:
                if first and not place.continues:
                    place.sum.zero_()
            elif first:  # the gradient includes a continued sum
                place.sum.copy_(gradient)
                if weight != 1.0:
                    place.sum.mul_(weight)
            else:
                place.sum.add_(gradient, alpha=weight)

    def send(
        self, sub_model: int, gate: Gate, first_pass: bool, seed: int, report: Report, added: Report
    ) -> None:
        """Start adding the sub-model's sums to the arena on the host.

        Call it inside `Device.computing`.

        Args:
            sub_model: Sub-model whose backwards are done.
            gate: Gate of the pass.
            first_pass: True for the first pass of a round, which overwrites the arena.
            seed: Seed of the noise for stochastic rounding of bfloat16 sums.
            report: Receives the time of the copy.
            added: Receives the time of the addition.
        """
        sums = list(self._waiting[sub_model])
        if not gate.is_added(sub_model):
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
    """Return the same additions with sources rounded to nearest, packed into the slot.

    Args:
        sums: Additions to the host's arena. Additions whose source is already on the host stay as
            they are.
        slot: Memory on the device for the rounded sources, one after another.
    """
    found, offset = [], 0
    for part in sums:
        if part.on_host:
            found.append(part)
            continue
        end = offset + part.source.numel()
        found.append(replace(part, source=slot[offset:end].copy_(part.source)))
        offset = end
    return found
