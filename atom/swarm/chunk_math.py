"""Arithmetic on chunks in the ring's threads, single-threaded on purpose.

Torch splits an element-wise operation over OpenMP threads from 32768 elements on; with another
process on the same cores their barriers collapse (measured: a hundred times slower). So every
operation here runs on blocks below that size: they also stay in the cache.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 16 * 1024


def add(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left + right, all fp32 [n]."""
    for block in _blocks(out.numel()):
        torch.add(left[block], right[block], out=out[block])


def scale(values: Tensor, factor: float, out: Tensor) -> None:
    """out = values · factor, fp32 [n]; `out` may be `values`."""
    for block in _blocks(out.numel()):
        torch.mul(values[block], factor, out=out[block])


def copy(values: Tensor, out: Tensor) -> None:
    """out = values, converted to out's type with rounding to nearest even."""
    for block in _blocks(out.numel()):
        out[block].copy_(values[block])


def is_finite(values: Tensor) -> bool:
    """Whether no element is infinite or not a number."""
    for block in _blocks(values.numel()):
        low, high = torch.aminmax(values[block])  # propagates NaN; ten times isfinite's speed
        if not (math.isfinite(low.item()) and math.isfinite(high.item())):
            return False
    return True


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
