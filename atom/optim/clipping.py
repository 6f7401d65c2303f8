"""Gradient clipping by the global norm, computed with the same bits on every peer.

A sum of squares depends on the order of its additions, which libraries choose by instruction set
and thread count. Here the order is part of the definition. The square of a float32 or bfloat16 is
exact in float64 (48 of 53 bits), with or without fused multiply-add. Only element-wise additions
follow, which every IEEE machine rounds in the same way:

    lane[l] of block b = Σ over rows r of x[b·BLOCK + r·LANES + l]², in the order of r
    block b            = the lanes, added in halves: lane[l] += lane[l + n/2], n = LANES … 2
    sum                = the blocks, in order

So a block can be summed as soon as its gradients are final, while the backward of other sub-models
still runs. The norm is known soon after the last gradients have reached the host.

A peer without partners steps on sums that are read where they are stored (`GradientSums`). Sums on
the device are not copied to the host, except for the ends of each contiguous stretch there: at most
two blocks of the norm per stretch.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from atom.optim.gradients import FlatNumbers, GradientArena, require_flat
from atom.swap.device_kernels import device_kernels
from atom.swap.device_state import DeviceState
from atom.swap.host_kernels import host_kernels
from atom.swap.host_sums import HostSum, on_threads

LANES = 2**15  # independent float64 sums
BLOCK_ELEMENTS = LANES * 2**5
MOST_THREADS = 8  # a thread that decodes numbers uses 4 MiB


def gradient_norm(gradient: FlatNumbers, known: Mapping[int, float] | None = None) -> float:
    """Return the Euclidean norm of flat numbers on the host, with the same bits on every machine.

    Uses as many threads as PyTorch may use, up to `MOST_THREADS`; the number does not change the
    bits.

    Args:
        gradient: [elements] float32 or bfloat16.
        known: Sums of squares by the number of a block's first element, for blocks that are already
            summed or lie elsewhere. They are not read.

    Returns:
        The norm; inf or nan if an element is not finite.

    Raises:
        ValueError: The gradient has another shape or dtype.
        MismatchError: The kernel has not been compiled.
    """
    elements = gradient.numel()
    require_flat(gradient, elements)
    starts = range(0, elements, BLOCK_ELEMENTS)
    threads = max(min(torch.get_num_threads(), MOST_THREADS, len(starts)), 1)

    def block_squares(start: int) -> float:
        if known and start in known:
            return known[start]
        block = gradient[start : min(start + BLOCK_ELEMENTS, elements)]
        return _sum_of_squares(block.detach())

    with ThreadPoolExecutor(threads, "atom-norm") as pool:
        return _root_of_sum(pool.map(block_squares, starts))


class LandingSquares:
    """Sums of squares per block, each computed when a pass has completed the block."""

    def __init__(self, flat: Tensor) -> None:
        """Prepare an empty table.

        Args:
            flat: [elements] Gradient arena on the host.
        """
        self.known = dict[int, float]()
        """Sum of squares by number of the block's first element, as `gradient_norm` takes it."""
        self._flat, self._arrived_elements = flat, Counter[int]()
        self._counting = threading.Lock()

    def count_added(self, sums: Iterable[HostSum]) -> None:
        """Count the additions of one sub-model and sum the blocks that they complete. Thread-safe.

        Args:
            sums: Additions that were just made; `atom.swap.host_sums.Gate` calls this after each.
        """
        memory = self._flat.untyped_storage().data_ptr()
        in_arena = (s for s in sums if s.destination.untyped_storage().data_ptr() == memory)
        ranges = ((s.first, s.first + s.destination.numel()) for s in in_arena if s.last)
        with self._counting:
            parts = [part for each in ranges for part in self._missing(*each)]
        whole = [start for start, missing in parts if not missing]
        squares = on_threads(
            lambda start: _sum_of_squares(self._flat[start : start + BLOCK_ELEMENTS]),
            whole,
            min(torch.get_num_threads(), MOST_THREADS),
        )
        self.known.update(zip(whole, squares, strict=True))

    def _missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield each block that overlaps [first, end), with the number of missing elements."""
        for start in range(first - first % BLOCK_ELEMENTS, end, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, self._flat.numel())
            self._arrived_elements[start] += min(stop, end) - max(start, first)
            yield start, stop - start - self._arrived_elements[start]


def clip_coefficient(norm: float, clip_norm: float | None) -> float:
    """Return the factor that clips a gradient, as `torch.nn.utils.clip_grad_norm_` computes it.

    Args:
        norm: Norm of the gradient.
        clip_norm: Largest norm allowed; None: no clipping.

    Raises:
        ValueError: The norm is not finite, so no factor makes the gradient usable.
    """
    if not math.isfinite(norm):
        raise ValueError(f"the gradient's norm is not finite: {norm}")
    if clip_norm is None:
        return 1.0
    return min(1.0, clip_norm / (norm + 1e-6))


def _root_of_sum(squares: Iterable[float]) -> float:
    total = 0.0
    for each in squares:  # `sum` of Python 3.12 compensates rounding errors
        total += each
    return math.sqrt(total)


def _sum_of_squares(block: Tensor) -> float:
    return host_kernels().sum_of_squares(block, torch.empty(LANES, dtype=torch.float64))


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
    """Return each block's sum of squares, in the order of this file."""
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
