"""Gradient clipping by global norm: one number, the same bits on every peer.

A sum of squares depends on the order of its additions, which libraries choose by instruction set
and thread count. Here the order is part of the definition. The square of a float32 is exact in
float64 (48 of 53 bits; a bfloat16's too), fused multiply-add or not, and only element-wise
additions follow, which every IEEE machine rounds alike:

    lane[l] of block b = Σ over rows r of x[b·BLOCK + r·LANES + l]², in the order of r
    block b            = the lanes, added in halves: lane[l] += lane[l + n/2], n = LANES … 2
    sum                = the blocks, in order

So a block may be summed as soon as its gradients are final, under the backward of those that
follow, and the norm is there when the last of them have landed.
"""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from atom.optim.gradients import FlatNumbers, require_flat
from atom.swap.host_kernels import host_kernels
from atom.swap.host_sums import HostSum, on_threads

LANES = 2**15  # float64 sums that do not wait for each other
BLOCK_ELEMENTS = LANES * 2**5
MOST_THREADS = 8  # each has 4 MiB at work, where numbers have to be decoded


def gradient_norm(gradient: FlatNumbers, known: Mapping[int, float] | None = None) -> float:
    """Euclidean norm of flat numbers on the host, float32 or bfloat16; inf or nan if one is not
    finite. On as many threads as PyTorch may use. `known`: sums of blocks that are somewhere else,
    or have been summed, by the number of their first element.

    The same bits for any number of them, on any machine. Raises: ValueError for another shape or
    type; MismatchError when the kernel has not been compiled.
    """
    elements = gradient.numel()
    require_flat(gradient, elements)
    starts = range(0, elements, BLOCK_ELEMENTS)
    threads = max(min(torch.get_num_threads(), MOST_THREADS, len(starts)), 1)

    def summed(start: int) -> float:
        if known and start in known:
            return known[start]
        block = gradient[start : min(start + BLOCK_ELEMENTS, elements)]
        return _sum_of_squares(block.detach())

    with ThreadPoolExecutor(threads, "atom-norm") as pool:
        return _root_of_sum(pool.map(summed, starts))


class LandingSquares:
    """Each block's sum of squares, once all that a pass adds to it has landed."""

    def __init__(self, flat: torch.Tensor) -> None:
        """`flat`: where gradients land."""
        self.known = dict[int, float]()
        """As `gradient_norm` takes it."""
        self._flat, self._there = flat, Counter[int]()
        self._counting = threading.Lock()

    def landed(self, sums: Iterable[HostSum]) -> None:
        """See `atom.swap.host_sums.Gate`. From any thread."""
        memory = self._flat.untyped_storage().data_ptr()
        here = (s for s in sums if s.destination.untyped_storage().data_ptr() == memory)
        ended = ((s.first, s.first + s.destination.numel()) for s in here if s.last)
        with self._counting:
            parts = [part for each in ended for part in self._missing(*each)]
        whole = [start for start, missing in parts if not missing]
        squares = on_threads(self._squares, whole, min(torch.get_num_threads(), MOST_THREADS))
        self.known.update(zip(whole, squares, strict=True))

    def _missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Of each block that these elements lie in, how many are not there yet."""
        for start in range(first - first % BLOCK_ELEMENTS, end, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, self._flat.numel())
            self._there[start] += min(stop, end) - max(start, first)
            yield start, stop - start - self._there[start]

    def _squares(self, start: int) -> float:
        return _sum_of_squares(self._flat[start : start + BLOCK_ELEMENTS])


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
