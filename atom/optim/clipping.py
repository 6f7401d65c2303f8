"""Gradient clipping by global norm: one number, the same bits on every peer.

A sum of squares depends on the order of its additions, which libraries choose by instruction set
and thread count. Here the order is part of the definition. The square of a float32 is exact in
float64 (48 of 53 bits; a bfloat16's too), fused multiply-add or not, and only element-wise
additions follow, which every IEEE machine rounds alike:

    lane[l] of block b = Σ over rows r of x[b·BLOCK + r·LANES + l]², in the order of r
    block b            = the lanes, added in halves: lane[l] += lane[l + n/2], n = LANES … 2
    sum                = the blocks, in order

So a block can be summed as soon as its own elements are final, whatever the others are: the norm is
known shortly after the last part of an average (`LandingNorm`).
"""

import math
from collections.abc import Iterable

import torch

from atom.base.landing import LandedBlocks
from atom.optim.gradients import FlatNumbers, require_flat
from atom.swap.host_kernels import host_kernels

LANES = 2**15  # float64 sums that do not wait for each other
BLOCK_ELEMENTS = LANES * 2**7
MOST_THREADS = 8  # each has 16 MiB at work, where numbers have to be decoded


class LandingNorm:
    """The norm of flat numbers whose parts become final one by one.

    Each block is summed, on threads of this object's own, when all of it has landed. The same bits
    as `gradient_norm`, in whatever order and pieces it lands. Raises: as `gradient_norm`.
    """

    def __init__(self, gradient: FlatNumbers) -> None:
        require_flat(gradient, gradient.numel())

        def summed(start: int, stop: int) -> float:
            return _sum_of_squares(gradient[start:stop].detach())

        threads = min(torch.get_num_threads(), MOST_THREADS)
        self._blocks = LandedBlocks(gradient.numel(), BLOCK_ELEMENTS, summed, threads, "atom-norm")
        self.landed = self._blocks.landed
        self.close = self._blocks.close

    def norm(self) -> float:
        """Waits for the sums. What has not landed counts as it is now. Call once, at the end."""
        return _root_of_sum(self._blocks.found())


def gradient_norm(gradient: torch.Tensor) -> float:
    """Euclidean norm of a flat host tensor, float32 or bfloat16; inf or nan if an element is not
    finite. On as many threads as PyTorch may use.

    The same bits for any number of them, on any machine. Raises: ValueError for another shape or
    type; MismatchError when the kernel has not been compiled.
    """
    return LandingNorm(gradient).norm()


def norm_of_pieces(pieces: Iterable[torch.Tensor]) -> float:
    """Euclidean norm of all `pieces` together: flat host tensors, float32 or bfloat16, each summed
    as a block, in order. On the calling thread alone: for what is too small to start others.

    The same bits on any machine, and `gradient_norm`'s if the pieces are its blocks.
    """
    return _root_of_sum(map(_sum_of_squares, pieces))


def clip_coefficient(norm: float, clip_norm: float | None) -> float:
    """What the gradient is multiplied by: as `torch.nn.utils.clip_grad_norm_`. None: no clipping.

    Raises: ValueError for a norm that is not finite: no coefficient makes that gradient usable.
    """
    if not math.isfinite(norm):
        raise ValueError(f"the gradient's norm is {norm}")
    if clip_norm is None:
        return 1.0
    return min(1.0, clip_norm / (norm + 1e-6))


def _root_of_sum(squares: Iterable[float]) -> float:
    total = 0.0
    for each in squares:  # not `sum`: Python 3.12's compensates its rounding
        total += each
    return math.sqrt(total)


def _sum_of_squares(block: torch.Tensor) -> float:
    return host_kernels().sum_of_squares(block, torch.empty(LANES, dtype=torch.float64))
