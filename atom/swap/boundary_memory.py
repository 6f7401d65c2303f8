"""Memory for values that are offloaded: their places on the host, and a ring on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.swap.arrangement import Arrangement
from atom.swap.crossing import host_bytes, ring_slot_bytes, ring_slots
from atom.swap.device import Device
from atom.swap.program_crossings import crossings_of
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
