"""A round's gradient sums for a step of a peer without partners, read where they are stored.

Sums on the device are not copied to the host, except for the ends of each contiguous stretch on the
device: at most two blocks of the norm per stretch.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from atom.optim.clipping import BLOCK_ELEMENTS, LANES, gradient_norm
from atom.optim.gradients import GradientArena
from atom.swap.device_kernels import device_kernels
from atom.swap.device_state import DeviceState
from atom.swap.host_kernels import host_kernels


class GradientSums:
    """`FlatNumbers` over the arena's sums, for slices of whole parameters.

    Use it only between passes, after all gradients of the last pass have reached the arena.
    """

    def __init__(self, arena: GradientArena) -> None:
        self._arena, self._flat, self._on_device = arena, arena.flat, arena.on_device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the sums on the host."""
        return self._flat.dtype

    def numel(self) -> int:
        """Return the number of elements."""
        return self._flat.numel()

    def __getitem__(self, elements: slice) -> Tensor:
        if self._on_device is None or not self._on_device.allocated:
            return self._flat[elements]
        [(_, piece)] = self._on_device.sums.pieces(elements.start, elements.stop)
        return piece

    def divide(self, by: int) -> None:
        """Divide all sums in place, rounded as IEEE 754 division on the host and on the device.

        A GPU multiplies by the reciprocal if the divisor is a number on the host. Therefore the
        divisor is a tensor on the device.
        """
        self._flat.div_(by)
        self._arena.squares = {}
        with self._stepping() as on_device:
            if on_device is not None:
                sums = on_device.sums.memory
                sums.div_(torch.tensor(float(by), device=sums.device))

    def norm(self) -> float:
        """Return the Euclidean norm of all sums, as `gradient_norm` defines it."""
        known = dict(self._arena.squares)
        with self._stepping() as on_device:
            for start, sums in on_device.sums.stretches() if on_device else []:
                known |= self._squares_in_stretch(start, sums)
        return gradient_norm(self._flat, known)

    def _squares_in_stretch(self, start: int, sums: Tensor) -> dict[int, float]:
        """Return sums of squares of the blocks that lie wholly in a stretch on the device.

        Elements of blocks that continue outside the stretch are copied to the host, which sums
        these blocks.

        Args:
            start: Arena element at which the stretch begins.
            sums: [elements] The stretch, on the device.
        """
        end = start + sums.numel()
        first = min(-(-start // BLOCK_ELEMENTS) * BLOCK_ELEMENTS, end)
        last = end if end == self.numel() else max(end - end % BLOCK_ELEMENTS, first)
        self._flat[start:first].copy_(sums[: first - start])
        self._flat[last:end].copy_(sums[last - start :])
        squares = _squares_of_blocks(sums[first - start : last - start])
        return dict(zip(range(first, last, BLOCK_ELEMENTS), squares, strict=True))

    @contextmanager
    def _stepping(self) -> Iterator[DeviceState | None]:
        """Yield the state on the device, ready for operations; None if its memory is given back."""
        on_device = self._on_device
        with nullcontext() if on_device is None else on_device.lock:
            if on_device is None or not on_device.allocated:
                yield None
                return
            with on_device.stepping():
                yield on_device


def _squares_of_blocks(x: Tensor) -> list[float]:
    """Return each block's sum of squares, in the order that `atom.optim.clipping` defines."""
    if not x.numel():
        return []
    blocks = -(-x.numel() // BLOCK_ELEMENTS)
    sums = torch.empty((blocks, LANES), dtype=torch.float64, device=x.device)
    if x.device.type == "cpu":
        starts = range(0, x.numel(), BLOCK_ELEMENTS)
        blocks_of_x = (x[start : start + BLOCK_ELEMENTS] for start in starts)
        return [host_kernels().sum_of_squares(block, sums[0]) for block in blocks_of_x]
    device_kernels(x.device).squares(x, sums, LANES, BLOCK_ELEMENTS // LANES)
    while sums.shape[1] > 1:
        near, far = sums.chunk(2, 1)
        sums = near + far
    return sums.view(-1).tolist()
