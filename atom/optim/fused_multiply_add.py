"""a·b + c rounded once to float32, made of operations that no device has a choice about.

A compiler may or may not fuse `a * b + c` inside a kernel, so a kernel with both in it cannot be
trusted to do either. Every operation here is a kernel of its own with one IEEE operation in it:

    p = a · b                     in float64: exact, 24 + 24 of its 53 bits
    s = p + c                     in float64: rounded
    e = (p - (s - b')) + (c - b') with b' = s - p: what that rounding took away, exactly (TwoSum)

Rounding s to float32 would round twice, which goes wrong where s lies half-way between two
float32 and e says on which side the truth is. So s is rounded to odd first: where e is not zero,
s becomes the one of its neighbours (itself included) around p + c whose last bit is 1. That bit
then says "and a little more", and rounding to 24 bits is right, for subnormal results as well
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 57, 2008).
"""

from collections.abc import Callable

import torch
from torch import Tensor

Memory = Callable[[int, torch.dtype], Tensor]
"""Takes elements and their type; gives flat memory on the device."""
SCRATCH_BYTES = 4 * torch.float64.itemsize + torch.bool.itemsize
"""Per element."""


class FusedMultiplyAdd:
    """Scratch for so many elements. One caller at a time, in one order of operations."""

    def __init__(self, elements: int, memory: Memory) -> None:
        self.wide = tuple(memory(elements, torch.float64) for _ in range(4))
        """Free for others between two calls."""
        self.flags = memory(elements, torch.bool)
        """Likewise."""

    def __call__(self, a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> None:
        """`out` [n] = a [n] · b ([n] or a scalar) + c [n]; all float32 on the device. `out` may be
        one of the others. Infinite and not-a-number operands give what IEEE 754 says, but for the
        bits within a number that is none."""
        p, s, low, other = (buffer[: len(a)] for buffer in self.wide)
        inexact = self.flags[: len(a)]
        p.copy_(a).mul_(b)
        torch.add(p, c, out=s)
        torch.sub(s, p, out=low)
        torch.sub(s, low, out=other)
        p.sub_(other)
        torch.sub(c, low, out=other)
        p.add_(other)  # now e
        self._round_to_odd(s, p, low, inexact)
        out.copy_(s)

    def _round_to_odd(self, s: Tensor, e: Tensor, spare: Tensor, inexact: Tensor) -> None:
        """Rounds towards zero where s was rounded away from it, and sets the last bit."""
        bits, apart = s.view(torch.int64), spare.view(torch.int64)
        torch.bitwise_xor(bits, e.view(torch.int64), out=apart)
        apart.bitwise_right_shift_(63)  # -1 where the signs differ
        torch.gt(e.abs_(), 0, out=inexact)  # not where e is no number: then s is not finite
        apart.bitwise_and_(inexact)
        bits.sub_(apart)
        bits.bitwise_or_(inexact)
