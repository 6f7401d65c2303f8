"""Arithmetic on chunks in the ring's threads, single-threaded on purpose.

Torch splits an element-wise operation over OpenMP threads from 32768 elements on; with another
process on the same cores their barriers collapse (measured: a hundred times slower). NumPy never
does, and takes two thirds of the time; what it has no type for goes through torch in blocks below
that size. Every operation is element-wise and rounds as IEEE says: the same bits on any machine.
"""

from collections.abc import Iterator

import numpy
from torch import Tensor

_BLOCK = 16 * 1024


def add(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left + right, all fp32 [n]."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        numpy.add(left.numpy(), right.numpy(), out=out.numpy())


def subtract(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left - right, all fp32 [n]; `out` may be either."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        numpy.subtract(left.numpy(), right.numpy(), out=out.numpy())


def scale(values: Tensor, factor: float, out: Tensor) -> None:
    """out = values · factor (rounded to fp32), fp32 [n]; `out` may be `values`."""
    with numpy.errstate(over="ignore", under="ignore", invalid="ignore"):
        numpy.multiply(values.numpy(), numpy.float32(factor), out=out.numpy())


def copy(values: Tensor, out: Tensor) -> None:
    """out = values, converted to out's type with rounding to nearest even."""
    for block in _blocks(out.numel()):
        out[block].copy_(values[block])


def is_finite(values: Tensor) -> bool:
    """Whether no element of values, fp32 [n], is infinite or not a number."""
    return bool(numpy.isfinite(values.numpy()).all())


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
