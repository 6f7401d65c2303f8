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

    def __init__(self, flat: torch.Tensor) -> None:
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
        squares = on_threads(self._squares, whole, min(torch.get_num_threads(), MOST_THREADS))
        self.known.update(zip(whole, squares, strict=True))

    def _missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield each block that overlaps [first, end), with the number of missing elements."""
        for start in range(first - first % BLOCK_ELEMENTS, end, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, self._flat.numel())
            self._arrived_elements[start] += min(stop, end) - max(start, first)
            yield start, stop - start - self._arrived_elements[start]

    def _squares(self, start: int) -> float:
        return _sum_of_squares(self._flat[start : start + BLOCK_ELEMENTS])


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


def _sum_of_squares(block: torch.Tensor) -> float:
    return host_kernels().sum_of_squares(block, torch.empty(LANES, dtype=torch.float64))
