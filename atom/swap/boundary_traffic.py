"""Carries offloaded values between the device and the host during a training pass.

What leaves is copied as it lies in memory, so that what comes back has the same bits, strides and
sharing of memory. It is held on the device until its copy is complete; computing is ordered behind
that before the memory is given up, so nothing waits but the streams.

What comes back is a view of a place of the ring, for the one visit that the place was filled for.
What is needed for longer is copied out of the ring, device to device.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.graph.segment import Computed
from atom.swap.boundary_memory import BoundaryMemory
from atom.swap.crossing import OUTGOING, aligned
from atom.swap.device import Copy, Device, RandomState, Report
from atom.swap.schedule import Backward, Shape, ValuesIn, ValuesOut


@dataclass
class MicroBatch:
    """What one micro-batch has in flight between sub-models."""

    values: dict[str, Tensor]
    """Batch entries and boundary values by name, detached, on the device."""
    sequences: int
    random: RandomState
    """Where its own stream of random numbers stands: the same whatever the cut or the company."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Gradients of boundary values, summed over the sub-models visited so far."""
    random_before: dict[int, RandomState] = field(default_factory=dict)
    """Per sub-model: the random state its forward began with."""
    computed: dict[int, Computed] = field(default_factory=dict)
    """Per sub-model: its graph, if it waits for the backward instead of being recomputed."""
    loss: Tensor | None = None

    def clear(self) -> None:
        """Forgets what is on the device."""
        self.values.clear()
        self.gradients.clear()
        self.computed.clear()


@dataclass(frozen=True)
class _Leaving:
    """Copies to the host that may be under way; holding their sources holds the memory."""

    key: int
    of: tuple[int, int]
    """Sub-model and micro-batch."""
    copies: tuple[Copy, ...]


class BoundaryTraffic:
    """One program's traffic. Used by the engine's thread."""

    def __init__(
        self, shape: Shape, memory: BoundaryMemory, device: Device, first_slot: int
    ) -> None:
        """`first_slot`: number of the ring's first place among the device's slots."""
        self._crossings, self._away = shape.crossings, shape.away
        self._memory, self._device, self._first_slot = memory, device, first_slot
        moving = sorted(shape.moving)
        self._moving = frozenset(name for i in moving for name in self._crossings[i].names)
        self._offsets: dict[int, int] = {}
        """Of the first micro-batch's place on the host; those of the others follow."""
        used = 0
        for index in moving:
            self._offsets[index] = used
            used += memory.micro_batches * aligned(self._crossings[index].value_bytes)
        self._looks: dict[tuple[int, int], dict[str, Look]] = {}
        """Crossing and micro-batch → what lies on the host."""
        self._under_way: deque[_Leaving] = deque()
        self._sent = 0
        self._places: dict[tuple[int, int], int] = {}
        """Sub-model and micro-batch → place of the ring."""

    def borrowed(self, names: Iterable[str], batch: MicroBatch) -> frozenset[int]:
        """Addresses of memory that moving values lie in: those of `names`."""
        values = (batch.values[name] for name in names if name in self._moving)
        return frozenset(value.untyped_storage().data_ptr() for value in values)

    def forget(self) -> None:
        """The pass is over and the device drained: what lies on the host is void."""
        self._looks.clear()
        self._places.clear()
        self._under_way.clear()

    def send(self, event: ValuesOut, batch: MicroBatch, report: Report | None) -> None:
        """Starts for the host what the sub-model was the last to use."""
        s, c = event.sub_model, event.micro_batch
        copies: list[Copy] = []
        while len(self._under_way) >= OUTGOING:
            self._retire()
        for index in self._away[s]:
            crossing = self._crossings[index]
            held = {name: batch.values[name] for name in crossing.names if name in batch.values}
            package = pack(held, crossing.value_bytes)
            if package.size_bytes > crossing.value_bytes:
                continue  # it does not look as foreseen: it stays where it is
            self._looks[index, c] = package.looks
            place = self._host_place(index, c)
            copies += [
                Copy(place[start : start + piece.numel()], piece)
                for start, piece in package.pieces
                if piece.numel() > 0
            ]
            for name in held:
                del batch.values[name]
        if copies:
            key, self._sent = self._sent % OUTGOING, self._sent + 1
            self._device.values_out(key, copies, report)
            self._under_way.append(_Leaving(key, (s, c), tuple(copies)))

    def _retire(self) -> None:
        oldest = self._under_way.popleft()
        self._device.wait_values_out(oldest.key)

    def fetch(self, event: ValuesIn, report: Report | None) -> None:
        """Starts filling a place of the ring with what the sub-model's backward needs."""
        of = event.sub_model, event.micro_batch
        while any(leaving.of == of for leaving in self._under_way):
            self._retire()
        ring = self._memory.ring[event.place]
        copies = []
        for index, start in self._arriving(*of):
            size = self._crossings[index].value_bytes
            place = self._host_place(index, event.micro_batch)
            copies.append(Copy(ring[start : start + size], place[:size]))
        self._places[of] = event.place
        self._device.load(self._first_slot + event.place, copies, report)

    def arrive(self, event: Backward, batch: MicroBatch) -> None:
        """Before a backward on a micro-batch: what it needs is there. Call where one computes."""
        of = event.sub_model, event.micro_batch
        place = self._places.pop(of, None)
        if place is None:
            return
        self._device.wait_loaded(self._first_slot + place)
        for index, start in self._arriving(*of):
            crossing = self._crossings[index]
            memory = self._memory.ring[place][start : start + aligned(crossing.value_bytes)]
            if len(crossing.used_by) > 1:
                memory = memory.clone()
            looks = self._looks.pop((index, event.micro_batch))
            batch.values.update({name: look.of(memory) for name, look in looks.items()})

    def _arriving(self, sub_model: int, micro_batch: int) -> list[tuple[int, int]]:
        """With offsets in a place of the ring. What did not leave needs no fetching."""
        found, used = [], 0
        for index in self._away[sub_model]:
            if (index, micro_batch) in self._looks:
                found.append((index, used))
            used += aligned(self._crossings[index].value_bytes)
        return found

    def _host_place(self, index: int, micro_batch: int) -> Tensor:
        size = aligned(self._crossings[index].value_bytes)
        start = self._offsets[index] + micro_batch * size
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


def pack(tensors: Mapping[str, Tensor], most_bytes: int) -> Package:
    """Tensors in no more than so many bytes, if that is possible.

    Whole storages where they fit: nothing is computed, tensors that share memory go on sharing it.
    Else the elements of each tensor: a view of a much larger piece of memory leaves that behind.
    """
    whole = _whole(tensors)
    return whole if whole.size_bytes <= most_bytes else _dense(tensors)


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
