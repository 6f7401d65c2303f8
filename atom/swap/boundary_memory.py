"""Values between a program's sub-models, and the memory for offloaded ones.

Offloaded values have places on the host, and a ring of places on the device to come back to.
"""

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
    """Memory for offloaded values, shared by the programs of one replica, which take turns.

    It is empty if no values are offloaded.
    """

    host: Tensor
    """[bytes] uint8 on the host."""
    ring: tuple[Tensor, ...]
    """Places on the device, [bytes] uint8 each.

    Each place has its own storage, so filling one does not change the version counters of views of
    the others.
    """
    micro_batches: int
    """Largest number of micro-batches of a pass."""

    @classmethod
    def allocate(
        cls, shapes: Sequence[Shape], device: Device, micro_batches: int
    ) -> "BoundaryMemory":
        """Allocate memory that suffices for each of the shapes.

        Args:
            shapes: Shapes of all programs that use the memory.
            device: Device that moves the values.
            micro_batches: Largest number of micro-batches of a pass.

        Raises:
            MemoryError: The host has too little memory.
        """
        shapes = [replace(shape, micro_batches=micro_batches) for shape in shapes]
        place = max((shape.ring_slot_bytes for shape in shapes), default=0)
        host = max((shape.host_bytes for shape in shapes), default=0)
        places = ring_slots(micro_batches) if place else 0
        ring = tuple(device.slot_memory(place, torch.uint8) for _ in range(places))
        return cls(device.host_memory(host, torch.uint8), ring, micro_batches)


def shape_of(
    program: Program, arrangement: Arrangement, micro_batches: int = 1, place: int = 0
) -> Shape:
    """Return the shape of a program's passes under an arrangement.

    The values between sub-models are included only if some are offloaded.

    Args:
        program: Program to run.
        arrangement: Use of the device or of the group.
        micro_batches: Micro-batches of a pass.
        place: Index of this device in its group.
    """
    parts, visited = program.sub_models, None
    crossings = crossings_of(program) if arrangement.offloaded else ()
    if arrangement.devices > 1:
        owners = device_of([program.layout.elements(p) for p in parts], arrangement.devices)
        visited = tuple(s for s, owner in enumerate(owners) if owner == place)
    return Shape(len(parts), micro_batches, arrangement, crossings, visited)


def crossings_of(program: Program) -> tuple[Crossing, ...]:
    """Return the values that may be offloaded, in the order in which they are computed.

    Values that share memory move together. Batch entries, the loss, and values that are the same in
    every micro-batch are left out.

    Raises:
        ValueError: The program does not describe one of its values.
    """
    users, found = users_of(program.sub_models), list[Crossing]()
    for part in program.sub_models:
        together: dict[str, list[str]] = {}
        for name in part.outputs:
            if name in users and name not in program.shared:
                if name not in program.values:
                    raise ValueError(f"the program does not describe the value {name}")
                memory = program.values[name].memory
                together.setdefault(memory or f"{name} alone", []).append(name)
        for names in together.values():
            specs = [program.values[name] for name in names]
            size = max(each.memory_bytes for each in specs) or sum(s.size_bytes for s in specs)
            used_by = tuple(sorted({user for name in names for user in users[name]}))
            found.append(Crossing(part.index, used_by, size, 0, tuple(names)))
    return tuple(found)


def users_of(sub_models: Sequence[SubModel]) -> dict[str, list[int]]:
    """Return the sub-models that take each value as input, ascending, by the value's name."""
    users: dict[str, list[int]] = {}
    for sub_model in sub_models:
        for name in sub_model.inputs:
            users.setdefault(name, []).append(sub_model.index)
    return users
