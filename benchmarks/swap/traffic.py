"""Bytes over the link in one step, by the formula and by the events of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from atom.graph.ir import Program, padded_elements
from atom.swap.arrangement import Arrangement
from atom.swap.device_slots import SlotLayout, carried_elements, users_of_parameters
from atom.swap.schedule import GradientOut, Load, Observed
from atom.training.replica.engines import trained_parameters


@dataclass(frozen=True)
class Traffic:
    """Copies and bytes of one optimizer step."""

    loads: int
    gradient_outs: int
    in_bytes: int
    out_bytes: int


@dataclass(frozen=True)
class Link:
    """Sizes of a program's sub-models on the link, in one arrangement."""

    elements: tuple[int, ...]
    """Elements per sub-model without parameters trained on the device; a tied weight counts in each
    of its users."""
    leaving: tuple[int, ...]
    """Gradient elements per sub-model. In float32 a tied weight counts in its first user only."""
    arrangement: Arrangement
    weight_bytes: int
    gradient_bytes: int

    @classmethod
    def of(cls, program: Program, arrangement: Arrangement, gradient_bytes: int = 4) -> "Link":
        layouts = [
            SlotLayout.of(part.parameter_names, program.layout) for part in program.sub_models
        ]
        trained, by_name = trained_parameters(program, arrangement), program.layout.by_name
        elements = tuple(
            sum(padded_elements(by_name[name].numel) for name in layout.offsets.keys() - trained)
            for layout in layouts
        )
        carried = carried_elements(program, program.parameter_dtype)
        users = users_of_parameters(program.sub_models)
        stays = [
            sum(n for name, n in carried.items() if s in users[name][1:] and name not in trained)
            for s in range(len(elements))
        ]
        leaving = tuple(n - m for n, m in zip(elements, stays, strict=True))
        each = program.parameter_dtype.itemsize
        return cls(elements, leaving, arrangement, each, gradient_bytes)

    def formula(self, passes: int) -> Traffic:
        """Return the traffic of a step of so many passes that begins with nothing loaded.

        Swapped sub-models go in twice per pass (forward, backward), except those that shared slots
        still hold when the backward begins and, from the second pass on, when the forward
        begins. Residents go in once. All gradients leave once per pass.
        """
        slots, resident = self.arrangement.slots, self.arrangement.resident
        swapped = [s for s in range(len(self.elements)) if s not in resident]
        backward = swapped[: max(len(swapped) - slots, 0)]
        first, later = [*swapped, *backward], [*swapped[slots:], *backward]
        loads = [*sorted(resident), *first, *later * (passes - 1)]
        return self._traffic(loads, list(range(len(self.elements))) * passes)

    def seen(self, events: Sequence[Observed]) -> Traffic:
        loads = [event.sub_model for event in events if isinstance(event, Load)]
        outs = [event.sub_model for event in events if isinstance(event, GradientOut)]
        return self._traffic(loads, outs)

    def _traffic(self, loads: Sequence[int], outs: Sequence[int]) -> Traffic:
        return Traffic(
            len(loads),
            len(outs),
            sum(self.elements[s] for s in loads) * self.weight_bytes,
            sum(self.leaving[s] for s in outs) * self.gradient_bytes,
        )
