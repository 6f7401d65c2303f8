"""What lies between a program's sub-models, and memory for what of it is offloaded: places on the
host, and a ring on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atom.graph.ir import Program, SubModel
from atom.swap.arrangement import Arrangement, device_of
from atom.swap.crossing import Crossing, ring_slots
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
        cls, shapes: Sequence[Shape], device: Device, micro_batches: int
    ) -> "BoundaryMemory":
        """Enough for each of the shapes, with so many micro-batches. Raises: MemoryError."""
        shapes = [replace(shape, micro_batches=micro_batches) for shape in shapes]
        place = max((shape.ring_slot_bytes for shape in shapes), default=0)
        host = max((shape.host_bytes for shape in shapes), default=0)
        places = ring_slots(micro_batches) if place else 0
        ring = tuple(device.slot_memory(place, torch.uint8) for _ in range(places))
        return cls(device.host_memory(host, torch.uint8), ring, micro_batches)


def shape_of(
    program: Program, arrangement: Arrangement, micro_batches: int = 1, place: int = 0
) -> Shape:
    """With all that lies between sub-models, if any of it is offloaded; with those of the device
    at this place of a group, if it is one."""
    parts, visited = program.sub_models, None
    crossings = crossings_of(program) if arrangement.offloaded else ()
    if arrangement.devices > 1:
        owners = device_of([program.layout.elements(p) for p in parts], arrangement.devices)
        visited = tuple(s for s, owner in enumerate(owners) if owner == place)
    return Shape(len(parts), micro_batches, arrangement, crossings, visited)


def crossings_of(program: Program) -> tuple[Crossing, ...]:
    """Values that may move, in the order in which they are made; those that share memory move as
    one. Without batch entries, the loss, and what is the same in every micro-batch.

    Raises: ValueError for a program that does not say what its values look like.
    """
    users, found = users_of(program.sub_models), list[Crossing]()
    for part in program.sub_models:
        together: dict[str, list[str]] = {}
        for name in part.outputs:
            if name in users and name not in program.shared:
                if name not in program.values:
                    raise ValueError(f"the program does not say what {name} looks like")
                memory = program.values[name].memory
                together.setdefault(memory or f"{name} alone", []).append(name)
        for names in together.values():
            specs = [program.values[name] for name in names]
            size = max(each.memory_bytes for each in specs) or sum(s.size_bytes for s in specs)
            used_by = tuple(sorted({user for name in names for user in users[name]}))
            found.append(Crossing(part.index, used_by, size, 0, tuple(names)))
    return tuple(found)


def users_of(sub_models: Sequence[SubModel]) -> dict[str, list[int]]:
    """Per value those of them that take it, ascending."""
    users: dict[str, list[int]] = {}
    for sub_model in sub_models:
        for name in sub_model.inputs:
            users.setdefault(name, []).append(sub_model.index)
    return users
