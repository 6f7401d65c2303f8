"""Gradient clipping by global norm: one number, the same bits on every peer.

A sum of squares depends on the order of its additions, which libraries choose by instruction set
and thread count. Here the order is part of the definition. The square of a float32 is exact in
float64 (48 of 53 bits; a bfloat16's too), fused multiply-add or not, and only element-wise
additions follow, which every IEEE machine rounds alike:

    lane[l] of block b = Σ over rows r of x[b·BLOCK + r·LANES + l]², in the order of r
    block b            = the lanes, added in halves: lane[l] += lane[l + n/2], n = LANES … 2
    sum                = the blocks, in order

So a block can be summed as soon as its own elements are final, whatever the others are: the norm is
known shortly after the last gradient (`LandingNorm`).
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import torch

from atom.swap.host_kernels import GRADIENT_FORMATS, host_kernels

LANES = 2**15
"""float64 sums that do not wait for each other."""
BLOCK_ELEMENTS = LANES * 2**10

Landed = Callable[[int, int], None]
"""Told that elements [start, stop) of a gradient are final."""


class LandingNorm:
    """The norm of a flat host tensor, float32 or bfloat16, whose parts become final one by one.

    Each block is summed, on threads of this object's own, when all of it has landed. The same bits
    as `gradient_norm`, in whatever order and pieces it lands. Raises: as `gradient_norm`.
    """

    def __init__(self, gradient: torch.Tensor, threads: int | None = None) -> None:
        flat = gradient.dim() == 1 and gradient.is_contiguous() and gradient.device.type == "cpu"
        if not flat or gradient.dtype not in GRADIENT_FORMATS:
            raise ValueError("the norm is defined on a flat tensor of gradients on the host")
        self._blocks = list(_blocks(gradient.detach()))
        self._block_elements = BLOCK_ELEMENTS
        self._missing = [block.numel() for block in self._blocks]
        self._sums: list[Future[float] | None] = [None] * len(self._blocks)
        self._lock = Lock()
        threads = min(threads or torch.get_num_threads(), len(self._blocks))
        self._pool = ThreadPoolExecutor(max(threads, 1), "atom-norm")

    def landed(self, start: int, stop: int) -> None:
        """Elements [start, stop) are final, and were not before. From any thread; does not wait."""
        size = self._block_elements
        with self._lock:
            for block in range(start // size, -(-stop // size)):
                here = min(stop, (block + 1) * size) - max(start, block * size)
                assert here <= self._missing[block], "an element lands once"
                self._missing[block] -= here
                if self._missing[block] == 0:
                    self._begin(block)

    def norm(self) -> float:
        """Waits for the sums. What has not landed counts as it is now. Call once, at the end."""
        with self._pool:
            with self._lock:
                for block, begun in enumerate(self._sums):
                    if begun is None:
                        self._begin(block)
            total = 0.0
            for each in self._sums:  # not `sum`: from Python 3.12 on that compensates its rounding
                assert each is not None
                total += each.result()
        return math.sqrt(total)

    def close(self) -> None:
        """Nobody wants to know any more. The gradient is not read after this."""
        self._pool.shutdown(cancel_futures=True)

    def _begin(self, block: int) -> None:
        self._sums[block] = self._pool.submit(_sum_of_squares, self._blocks[block])


def gradient_norm(gradient: torch.Tensor, threads: int | None = None) -> float:
    """Euclidean norm of a flat host tensor, float32 or bfloat16; inf or nan if an element is not
    finite. On as many threads as PyTorch may use, unless told.

    The same bits for any `threads`, on any machine. Raises: ValueError for another shape or type;
    MismatchError when the kernel has not been compiled.
    """
    return LandingNorm(gradient, threads).norm()


def clip_coefficient(norm: float, clip_norm: float | None) -> float:
    """What the gradient is multiplied by: as `torch.nn.utils.clip_grad_norm_`. None: no clipping.

    Raises: ValueError for a norm that is not finite: no coefficient makes that gradient usable.
    """
    if not math.isfinite(norm):
        raise ValueError(f"the gradient's norm is {norm}")
    if clip_norm is None:
        return 1.0
    return min(1.0, clip_norm / (norm + 1e-6))


def _blocks(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, gradient.numel(), BLOCK_ELEMENTS):
        yield gradient[start : start + BLOCK_ELEMENTS]


def _sum_of_squares(block: torch.Tensor) -> float:
    return host_kernels().sum_of_squares(block, torch.empty(LANES, dtype=torch.float64))
