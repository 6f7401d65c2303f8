"""Movement of offloaded values between the device and the host during a training pass.

A value is copied to the host as it lies in memory, so it comes back with the same bits, strides and
sharing of memory. The device's copy is held until the copy to the host is complete. The compute
stream waits for that before the memory is released, so no thread waits.

A value that comes back is a view of a place of the ring, valid for the one visit that the place was
filled for. A value that is needed for longer is copied out of the ring on the device.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from atom.graph.segment import Computed
from atom.swap.crossing import MOST_OUTGOING, aligned, ring_slots
from atom.swap.device import Copy, Device, RandomState, Report
from atom.swap.schedule import Backward, Shape, ValuesIn, ValuesOut


@dataclass
class MicroBatch:
    """Values, gradients and graphs of one micro-batch between sub-models."""

    values: dict[str, Tensor]
    """Batch entries and boundary values by name, detached, on the device."""
    sequences: int
    random: RandomState
    """Random state of this micro-batch, independent of the cut and of other micro-batches."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Gradients of boundary values, summed over the sub-models visited so far."""
    random_before: dict[int, RandomState] = field(default_factory=dict)
    """Random state with which a sub-model's forward began, by sub-model."""
    computed: dict[int, Computed] = field(default_factory=dict)
    """Autograd graph by sub-model, if it is kept for the backward instead of being recomputed."""
    loss: Tensor | None = None

    def clear(self) -> None:
        """Release values, gradients and graphs on the device."""
        self.values.clear()
        self.gradients.clear()
        self.computed.clear()


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


class BoundaryTraffic:
    """Offloaded values of one program. Used only by the engine's thread."""

    def __init__(
        self, shape: Shape, memory: BoundaryMemory, device: Device, first_slot: int
    ) -> None:
        """Assign a place on the host to each offloaded value.

        Args:
            shape: Shape of the program's passes.
            memory: Places on the host and on the device.
            device: Device that moves the values.
            first_slot: Number of the ring's first place among the device's slots.
        """
        self._crossings, self._offloads = shape.crossings, shape.offloads
        self._memory, self._device, self._first_slot = memory, device, first_slot
        moving = sorted(shape.moving)
        self._moving = frozenset(name for i in moving for name in self._crossings[i].names)
        self._offsets: dict[int, int] = {}
        """Host offset of a crossing's first micro-batch; other micro-batches follow."""
        used = 0
        for index in moving:
            self._offsets[index] = used
            used += memory.micro_batches * aligned(self._crossings[index].value_bytes)
        self._layouts: dict[tuple[int, int], dict[str, TensorLayout]] = {}
        """Layouts of the values on the host, by crossing and micro-batch."""
        self._outgoing = deque[tuple[int, tuple[int, int], list[Copy]]]()
        """Copies to the host that may be running, each with its key and (sub-model, micro-batch).

        References to the sources keep their memory.
        """
        self._sent = 0
        self._ring_places: dict[tuple[int, int], int] = {}
        """Ring place by sub-model and micro-batch."""

    def reused_memory(self, names: Iterable[str], batch: MicroBatch) -> frozenset[int]:
        """Return the storage addresses of the offloaded values among `names`.

        Their memory is released or overwritten during the pass.
        """
        values = (batch.values[name] for name in names if name in self._moving)
        return frozenset(value.untyped_storage().data_ptr() for value in values)

    def forget(self) -> None:
        """Forget the values on the host, after the pass has ended and the device was drained."""
        self._layouts.clear()
        self._ring_places.clear()
        self._outgoing.clear()

    def send(self, event: ValuesOut, batch: MicroBatch, report: Report) -> None:
        """Start copying the values to the host whose last use was the forward of this sub-model."""
        s, c = event.sub_model, event.micro_batch
        copies: list[Copy] = []
        while len(self._outgoing) >= MOST_OUTGOING:
            self._retire()
        for index in self._offloads[s]:
            crossing = self._crossings[index]
            held = {name: batch.values[name] for name in crossing.names if name in batch.values}
            layouts, pieces, size_bytes = pack(held)
            if size_bytes > crossing.value_bytes:
                continue  # a view of memory that another value needs longer: it stays there
            self._layouts[index, c] = layouts
            place = self._host_place(index, c)
            copies += [
                (place[start : start + piece.numel()], piece)
                for start, piece in pieces
                if piece.numel() > 0
            ]
            for name in held:
                del batch.values[name]
        if copies:
            key, self._sent = self._sent % MOST_OUTGOING, self._sent + 1
            self._device.values_out(key, copies, report)
            self._outgoing.append((key, (s, c), copies))

    def _retire(self) -> None:
        key, *_ = self._outgoing.popleft()
        self._device.wait_values_out(key)

    def fetch(self, event: ValuesIn, report: Report) -> None:
        """Start filling a place of the ring with the values that a sub-model's backward needs."""
        visit = event.sub_model, event.micro_batch
        while any(leaving == visit for _, leaving, _ in self._outgoing):
            self._retire()
        ring = self._memory.ring[event.place]
        copies = []
        for index, start in self._arriving(*visit):
            size = self._crossings[index].value_bytes
            place = self._host_place(index, event.micro_batch)
            copies.append((ring[start : start + size], place[:size]))
        self._ring_places[visit] = event.place
        self._device.load(self._first_slot + event.place, copies, report)

    def receive(self, event: Backward, batch: MicroBatch) -> None:
        """Add fetched values to the micro-batch before its backward.

        Call it inside `Device.computing`.
        """
        visit = event.sub_model, event.micro_batch
        place = self._ring_places.pop(visit, None)
        if place is None:
            return
        self._device.wait_loaded(self._first_slot + place)
        for index, start in self._arriving(*visit):
            crossing = self._crossings[index]
            memory = self._memory.ring[place][start : start + aligned(crossing.value_bytes)]
            if len(crossing.used_by) > 1:
                memory = memory.clone()
            layouts = self._layouts.pop((index, event.micro_batch))
            batch.values.update({name: layout.restore(memory) for name, layout in layouts.items()})

    def _arriving(self, sub_model: int, micro_batch: int) -> list[tuple[int, int]]:
        """Return the crossings to fetch for a backward, with their offsets in a place of the ring.

        Values that never left need no fetching.
        """
        found, used = [], 0
        for index in self._offloads[sub_model]:
            if (index, micro_batch) in self._layouts:
                found.append((index, used))
            used += aligned(self._crossings[index].value_bytes)
        return found

    def _host_place(self, index: int, micro_batch: int) -> Tensor:
        size = aligned(self._crossings[index].value_bytes)
        start = self._offsets[index] + micro_batch * size
        return self._memory.host[start : start + size]


@dataclass(frozen=True)
class TensorLayout:
    """Position and form of a tensor in a block of bytes."""

    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def restore(self, memory: Tensor) -> Tensor:
        """Return the tensor as a view of the packed bytes."""
        elements = memory.view(self.dtype)
        offset = int(elements.storage_offset()) + self.offset_bytes // self.dtype.itemsize
        return elements.as_strided(self.shape, self.stride, offset)


class Packed(NamedTuple):
    """Tensors as they lie in a block of memory."""

    layouts: dict[str, TensorLayout]
    pieces: list[tuple[int, Tensor]]
    """Bytes [n] to be copied into the block, each piece with its offset."""
    used_bytes: int
    """Bytes from the block's beginning to the end of its last piece."""


def pack(tensors: Mapping[str, Tensor]) -> Packed:
    """Pack the whole storages of tensors.

    This needs no computation, and tensors that share memory continue to share it.
    """
    starts: dict[int, int] = {}
    pieces: list[tuple[int, Tensor]] = []
    layouts: dict[str, TensorLayout] = {}
    used = end = 0
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in starts:
            starts[storage.data_ptr()] = used
            piece = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            pieces.append((used, piece.set_(storage)))
            end = used + storage.nbytes()
            used = aligned(end)
        start = starts[storage.data_ptr()] + int(tensor.storage_offset()) * tensor.itemsize
        layouts[name] = TensorLayout(start, tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return Packed(layouts, pieces, end)
