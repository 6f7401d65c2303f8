"""Gradient clipping by global norm: one number, the same bits on every peer.

A sum of squares depends on the order of its additions, which libraries choose by instruction set
and thread count. Here the order is part of the definition. The square of a float32 is exact in
float64 (48 of 53 bits), fused multiply-add or not, and only element-wise additions follow, which
every IEEE machine rounds alike:

    lane[l] of block b = Σ over rows r of x[b·BLOCK + r·LANES + l]², in the order of r
    block b            = the lanes, added in halves: lane[l] += lane[l + n/2], n = LANES … 2
    sum                = the blocks, in order
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from atom.swap.host_kernels import host_kernels

LANES = 2**15
"""float64 sums that do not wait for each other."""
BLOCK_ELEMENTS = LANES * 2**10


def gradient_norm(gradient: torch.Tensor, threads: int | None = None) -> float:
    """Euclidean norm of a flat float32 host tensor; inf or nan if an element is not finite. On as
    many threads as PyTorch may use, unless told.

    The same bits for any `threads`, on any machine. Raises: ValueError for another shape or type;
    MismatchError when the kernel has not been compiled.
    """
    flat = gradient.dim() == 1 and gradient.is_contiguous() and gradient.device.type == "cpu"
    if not flat or gradient.dtype != torch.float32:
        raise ValueError("the norm is defined on a flat float32 tensor on the host")
    blocks = list(_blocks(gradient.detach()))
    threads = min(threads or torch.get_num_threads(), len(blocks))
    if threads > 1:
        with ThreadPoolExecutor(threads, "atom-norm") as pool:
            sums = list(pool.map(_sum_of_squares, blocks))
    else:
        sums = [_sum_of_squares(block) for block in blocks]
    total = 0.0
    for each in sums:  # not `sum`: from Python 3.12 on that compensates its rounding
        total += each
    return math.sqrt(total)


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
