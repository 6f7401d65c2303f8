"""Carries offloaded values, and their gradients, between the device and the host during a pass.

What leaves is copied as it lies in memory, so that what comes back has the same bits, strides and
sharing of memory. It is held on the device until its copy is complete; computing is ordered behind
that before the memory is given up, so nothing waits but the streams.

What comes back is a view of a place of the ring, for the one visit that the place was filled for.
What is needed for longer is copied out of the ring, device to device.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.swap import segment
from atom.swap.boundary_memory import BoundaryMemory, NamedCrossing
from atom.swap.crossing import OUTGOING, Item, Stop, aligned, item_bytes
from atom.swap.device import Copy, Device, Report
from atom.swap.schedule import Backward, Forward, Shape, ValuesIn, ValuesOut
from atom.swap.segment import MicroBatch


@dataclass(frozen=True)
class _Leaving:
    """Copies to the host that may be under way; holding their sources holds the memory."""

    key: int
    micro_batch: int
    items: tuple[Item, ...]
    copies: tuple[Copy, ...]


class BoundaryTraffic:
    """One program's traffic. Used by the engine's thread."""

    def __init__(
        self,
        crossings: tuple[NamedCrossing, ...],
        arrangement_shape: Shape,
        memory: BoundaryMemory,
        device: Device,
        first_slot: int,
    ) -> None:
        """`first_slot`: number of the ring's first place among the device's slots."""
        self._names = tuple(each.names for each in crossings)
        self._crossings = tuple(each.crossing for each in crossings)
        self._shape, self._memory, self._device = arrangement_shape, memory, device
        self._first_slot = first_slot
        self._moving = frozenset(
            name for index in self._shape.moving for name in self._names[index]
        )
        self._offsets = self._host_offsets()
        self._looks: dict[tuple[Item, int], dict[str, Look]] = {}
        self._under_way: deque[_Leaving] = deque()
        self._sent = 0
        self._places: dict[tuple[int, int], int] = {}
        """Visit and micro-batch → place of the ring."""

    def borrowed(self, names: Iterable[str], batch: MicroBatch) -> frozenset[int]:
        """Addresses of memory that moving values lie in: those of `names`."""
        values = (batch.values[name] for name in names if name in self._moving)
        return frozenset(value.untyped_storage().data_ptr() for value in values)

    def forget(self) -> None:
        """The pass is over and the device drained: what lies on the host is void."""
        self._looks.clear()
        self._places.clear()
        self._under_way.clear()

    # --- leaving ------------------------------------------------------------------------------

    def send(
        self, event: ValuesOut, batch: MicroBatch, training: bool, report: Report | None
    ) -> None:
        stop, c = self._shape.stop(event, training), event.micro_batch
        copies: list[Copy] = []
        while len(self._under_way) >= OUTGOING:
            self._retire()
        for item in stop.leaving:
            held = self._held(item, batch)
            if item in stop.copied:
                packed = self._pack(item, c, held)
                if packed is None:
                    continue  # it does not look as foreseen: it stays where it is
                copies += packed
            if (item, c) in self._looks:
                looks = self._looks[item, c]
                self._looks[item, c] = {name: looks[name] for name in held}
                self._forget(item, batch)
        if copies:
            key, self._sent = self._sent % OUTGOING, self._sent + 1
            self._device.values_out(key, copies, report)
            self._under_way.append(_Leaving(key, c, stop.leaving, tuple(copies)))

    def _held(self, item: Item, batch: MicroBatch) -> dict[str, Tensor]:
        among = batch.gradients if item.gradient else batch.values
        return {name: among[name] for name in self._names[item.crossing] if name in among}

    def _forget(self, item: Item, batch: MicroBatch) -> None:
        among = batch.gradients if item.gradient else batch.values
        for name in self._names[item.crossing]:
            among.pop(name, None)

    def _pack(self, item: Item, micro_batch: int, held: Mapping[str, Tensor]) -> list[Copy] | None:
        """Copies to the item's place on the host. None if they take more than was foreseen."""
        package = pack(held, item_bytes(self._crossings, item))
        if package is None:
            return None
        self._looks[item, micro_batch] = package.looks
        place = self._host_place(item, micro_batch)
        return [
            Copy(place[start : start + piece.numel()], piece)
            for start, piece in package.pieces
            if piece.numel() > 0
        ]

    def _retire(self) -> None:
        oldest = self._under_way.popleft()
        self._device.wait_values_out(oldest.key)

    # --- coming back --------------------------------------------------------------------------

    def fetch(self, event: ValuesIn, training: bool, report: Report | None) -> None:
        """Starts filling a place of the ring with what a visit to come needs."""
        c = event.micro_batch
        arriving = self._arriving(self._shape.stop(event, training), c)
        while any(self._leaves(item, c) for item, _ in arriving):
            self._retire()
        ring = self._memory.ring[event.place]
        copies = [
            Copy(ring[start : start + size], self._host_place(item, c)[:size])
            for item, start in arriving
            if (size := item_bytes(self._crossings, item))
        ]
        self._places[self._shape.visit(event), c] = event.place
        self._device.load(self._first_slot + event.place, copies, report)

    def arrive(self, event: Forward | Backward, batch: MicroBatch, training: bool) -> None:
        """Before a visit computes on a micro-batch: what it needs is there. Call where one
        computes."""
        place = self._places.pop((self._shape.visit(event), event.micro_batch), None)
        if place is None:
            return
        self._device.wait_loaded(self._first_slot + place)
        stop = self._shape.stop(event, training)
        for item, start in self._arriving(stop, event.micro_batch):
            size = aligned(item_bytes(self._crossings, item))
            memory = self._memory.ring[place][start : start + size]
            if item in stop.staying:
                memory = memory.clone()
            among = batch.gradients if item.gradient else batch.values
            looks = self._looks[item, event.micro_batch]
            among.update({name: look.of(memory) for name, look in looks.items()})
            if item.gradient:  # it changes: what the host holds is void
                del self._looks[item, event.micro_batch]

    def keep(self, event: Backward, batch: MicroBatch, training: bool) -> None:
        """After a visit's backward: no gradient lies in the ring any more. Autograd passes some on
        as they are."""
        if self._shape.stop(event, training).arriving:
            ring = frozenset(place.untyped_storage().data_ptr() for place in self._memory.ring)
            for name, gradient in batch.gradients.items():
                batch.gradients[name] = segment.outliving(gradient, ring)

    def _arriving(self, stop: Stop, micro_batch: int) -> list[tuple[Item, int]]:
        """Items with their offsets in a place of the ring. What did not leave needs no fetching."""
        found, used = [], 0
        for item in stop.arriving:
            if (item, micro_batch) in self._looks:
                found.append((item, used))
            used += aligned(item_bytes(self._crossings, item))
        return found

    def _leaves(self, item: Item, micro_batch: int) -> bool:
        return any(item in out.items and out.micro_batch == micro_batch for out in self._under_way)

    # --- places -------------------------------------------------------------------------------

    def _host_offsets(self) -> dict[Item, int]:
        """Of the first micro-batch's place, in a host memory of `micro_batches` such places."""
        gone = {
            item: None
            for route in (self._shape.training_stops, self._shape.evaluation_stops)
            for stop in route
            for item in stop.leaving
        }
        offsets, used = {}, 0
        for item in gone:
            offsets[item] = used
            used += self._memory.micro_batches * aligned(item_bytes(self._crossings, item))
        return offsets

    def _host_place(self, item: Item, micro_batch: int) -> Tensor:
        size = aligned(item_bytes(self._crossings, item))
        start = self._offsets[item] + micro_batch * size
        return self._memory.host[start : start + size]


@dataclass(frozen=True)
class Look:
    """Where a tensor lies in a package, and what it looked like."""

    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    dense: bool
    """Its elements lie one after the other, without the gaps that its strides have."""

    def of(self, memory: Tensor) -> Tensor:
        """The tensor, in the package's bytes: a view of them; if it has gaps, memory of its own."""
        elements = memory.view(self.dtype)
        offset = int(elements.storage_offset()) + self.offset_bytes // self.dtype.itemsize
        if not self.dense:
            return elements.as_strided(self.shape, self.stride, offset)
        once = [1 if step == 0 else n for n, step in zip(self.shape, self.stride, strict=True)]
        contiguous = torch.empty(once, device="meta").stride()
        source = elements.as_strided(once, contiguous, offset)
        copy = torch.empty_strided(once, self.stride, dtype=self.dtype, device=memory.device)
        return copy.copy_(source).expand(self.shape)


@dataclass(frozen=True)
class Package:
    looks: dict[str, Look]
    """By name."""
    pieces: tuple[tuple[int, Tensor], ...]
    """Offset in the package, and the bytes [n] that belong there."""

    @property
    def size_bytes(self) -> int:
        """To the end of what lies last."""
        return max((start + piece.numel() for start, piece in self.pieces), default=0)


def pack(tensors: Mapping[str, Tensor], most_bytes: int) -> Package | None:
    """Tensors in no more than so many bytes, or None.

    Whole storages where they fit: nothing is computed, tensors that share memory go on sharing it.
    Else the elements of each tensor: a view of a much larger piece of memory leaves that behind.
    """
    for package in (_whole(tensors), _dense(tensors)):
        if package.size_bytes <= most_bytes:
            return package
    return None


def _whole(tensors: Mapping[str, Tensor]) -> Package:
    starts: dict[int, int] = {}
    pieces: list[tuple[int, Tensor]] = []
    looks: dict[str, Look] = {}
    used = 0
    for name, tensor in tensors.items():
        at = tensor.untyped_storage().data_ptr()
        if at not in starts:
            starts[at] = used
            piece = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            piece.set_(tensor.untyped_storage())
            pieces.append((used, piece))
            used += aligned(piece.numel())
        start = starts[at] + int(tensor.storage_offset()) * tensor.itemsize
        looks[name] = _look(tensor, start, dense=False)
    return Package(looks, tuple(pieces))


def _dense(tensors: Mapping[str, Tensor]) -> Package:
    pieces: list[tuple[int, Tensor]] = []
    looks: dict[str, Look] = {}
    used = 0
    for name, tensor in tensors.items():
        once = tensor[tuple(slice(1 if step == 0 else None) for step in tensor.stride())]
        pieces.append((used, once.contiguous().view(-1).view(torch.uint8)))
        looks[name] = _look(tensor, used, dense=True)
        used += aligned(pieces[-1][1].numel())
    return Package(looks, tuple(pieces))


def _look(tensor: Tensor, start: int, dense: bool) -> Look:
    return Look(start, tuple(tensor.shape), tensor.stride(), tensor.dtype, dense)
