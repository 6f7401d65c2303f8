"""What lies between a program's sub-models, and memory for what of it is offloaded: places on the
host, and a ring on the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.swap.arrangement import Arrangement
from atom.swap.crossing import Crossing, host_bytes, ring_slot_bytes, ring_slots
from atom.swap.device import Device
from atom.swap.schedule import Shape


@dataclass(frozen=True)
class BoundaryMemory:
    """Shared by the programs of one replica, which take turns. Empty if nothing is offloaded."""

    host: Tensor
    """Bytes, flat."""
    ring: tuple[Tensor, ...]
    """Bytes, flat, each memory of its own: filling one leaves the version counters of what views
    the others alone."""
    micro_batches: int
    """The most that a pass may have."""

    @classmethod
    def allocate(
        cls, programs: Sequence[tuple[Program, Arrangement]], device: Device, micro_batches: int
    ) -> "BoundaryMemory":
        """Enough for each of the programs. Raises: MemoryError."""
        needs = [boundary_bytes(*each, micro_batches) for each in programs]
        place = max((need.ring_slot_bytes for need in needs), default=0)
        host = max((need.host_bytes for need in needs), default=0)
        places = ring_slots(micro_batches) if place else 0
        ring = tuple(device.slot_memory(place, torch.uint8) for _ in range(places))
        # Last: the device keeps it until it is given back, also if there was no room for the ring.
        none = torch.empty(0, dtype=torch.uint8)
        return cls(device.host_memory(host, torch.uint8) if host else none, ring, micro_batches)


@dataclass(frozen=True)
class BoundaryBytes:
    host_bytes: int
    ring_slot_bytes: int


def boundary_bytes(program: Program, arrangement: Arrangement, micro_batches: int) -> BoundaryBytes:
    """What `BoundaryMemory.allocate` needs for a program."""
    if not arrangement.offloaded:
        return BoundaryBytes(0, 0)
    crossings = tuple(each.crossing for each in crossings_of(program))
    shape = Shape(len(program.sub_models), micro_batches, arrangement, crossings)
    routes = (shape.training_stops, shape.evaluation_stops)
    return BoundaryBytes(
        host_bytes=max(host_bytes(crossings, route, micro_batches) for route in routes),
        ring_slot_bytes=max(ring_slot_bytes(crossings, route) for route in routes),
    )


@dataclass(frozen=True)
class NamedCrossing:
    """Values that one sub-model makes in one piece of memory, or the gradient of one of them."""

    crossing: Crossing
    names: tuple[str, ...]


def crossings_of(program: Program) -> tuple[NamedCrossing, ...]:
    """In the order in which they are made. Without batch entries, the loss, and what is the same
    in every micro-batch.

    Raises: ValueError for a program that does not say what its values look like.
    """
    users: dict[str, list[int]] = {}
    for part in program.sub_models:
        for name in part.inputs:
            users.setdefault(name, []).append(part.index)
    found: list[NamedCrossing] = []
    for part in program.sub_models:
        together: dict[str, list[str]] = {}
        for name in part.outputs:
            if name in users and name not in program.shared:
                if name not in program.values:
                    raise ValueError(f"the program does not say what {name} looks like")
                memory = program.values[name].memory
                together.setdefault(memory or f"{name} alone", []).append(name)
        for names in together.values():
            found += _crossings(program, part.index, names, users)
    return tuple(found)


def _crossings(
    program: Program, made_by: int, names: Sequence[str], users: Mapping[str, Sequence[int]]
) -> list[NamedCrossing]:
    """Of values that share memory. That moves as one; their gradients share nothing."""
    specs = [program.values[name] for name in names]
    value_bytes = max(spec.memory_bytes for spec in specs) or sum(s.size_bytes for s in specs)
    gradients = [spec.size_bytes if spec.needs_grad else 0 for spec in specs]
    if len(names) == 1:
        used_by = tuple(users[names[0]])
        return [NamedCrossing(Crossing(made_by, used_by, value_bytes, gradients[0]), tuple(names))]
    union = tuple(sorted({user for name in names for user in users[name]}))
    return [
        NamedCrossing(Crossing(made_by, union, value_bytes, 0), tuple(names)),
        *(
            NamedCrossing(Crossing(made_by, tuple(users[name]), 0, size), (name,))
            for name, size in zip(names, gradients, strict=True)
        ),
    ]
