"""Bytes that slots take on a device, computed without the memory."""

import torch

from atom.graph.ir import Program
from atom.swap.device import CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.schedule import Arrangement


class MemorylessDevice(CpuDevice):
    """Tensors have shapes there, and no numbers."""

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype, device="meta")

    host_memory = slot_memory


def slot_bytes(
    program: Program,
    precision: torch.dtype,
    arrangement: Arrangement,
    micro_batches: int = 1,
    gradients: torch.dtype = torch.float32,
    place: int = 0,
) -> int:
    """Return the bytes of weights, gradients, and the ring through which values come back. `place`:
    in a group."""
    slots = DeviceSlots.allocate(
        [program], MemorylessDevice(), precision, arrangement, micro_batches, gradients, place=place
    )
    held = [*slots.weights, *slots.gradients, *slots.leaving, *slots.carried.values()]
    return sum(each.nbytes for each in [*held, *slots.boundary.ring])
