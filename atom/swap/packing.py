"""Tensors as bytes, to be copied elsewhere and found there again with the same bits and strides."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.swap.crossing import aligned


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
