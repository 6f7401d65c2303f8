"""In which numbers a replica keeps its weights, and what its state consists of.

A *split* weight is a float32 in two halves. The high one is a bfloat16, the weight rounded to
nearest, and is what the device loads: there is no working copy beside it. The low one is the 16
bits that were cut off. Nothing is lost: high · 2¹⁶ + low, the low half read as a signed number,
are the float32's bits.

Ties are rounded away from zero in it, not to even. Around a bfloat16 whose last bit is 0, to even
rounds 2¹⁶ + 1 neighbours to it, one more than 16 bits can tell apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout

MASTER, HIGH, LOW = "master", "master_high", "master_low"
WEIGHTS = frozenset({MASTER, HIGH, LOW})
_PIECE_ELEMENTS = 2**16
"""Split at a time: what lies in between stays in the cache, and no page is taken for it."""


@dataclass(frozen=True)
class StateArena:
    """A flat tensor of a replica's state, declared: its numbers, and where in it a parameter's
    part lies. Parameters may be missing, and have other shapes here than in the model."""

    dtype: torch.dtype
    layout: ParameterLayout

    @property
    def elements(self) -> int:
        return self.layout.trained_elements

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.itemsize


class StateForm(StrEnum):
    """Part of what a swarm agrees on: each form gives other bits."""

    EXACT = "exact"
    """float32 weights, and a rounded copy for the device in 16-bit precisions."""
    SPLIT = "split"
    """bfloat16 only. Split weights: as precise, without the copy."""
    HALF = "half"
    """bfloat16 only. Split weights, and the optimizer's state in 16 bits, however it rounds it."""

    @property
    def splits(self) -> bool:
        return self is not StateForm.EXACT

    @property
    def weight_dtypes(self) -> Mapping[str, torch.dtype]:
        """Of the arenas that hold the master weights, by name."""
        return {HIGH: torch.bfloat16, LOW: torch.int16} if self.splits else {MASTER: torch.float32}

    def require(self, precision: torch.dtype) -> None:
        """Raises: ValueError when sub-models that compute in `precision` cannot load this form."""
        if self.splits and precision != torch.bfloat16:
            raise ValueError(f"the high halves of {self.value} state are bfloat16, not {precision}")


def split(value: Tensor, high: Tensor, low: Tensor) -> None:
    """Writes the halves of `value` float32 into `high` bfloat16 and `low` int16, of its shape and
    contiguous."""
    bits = value.contiguous().view(-1).view(torch.int32)
    for start in range(0, bits.numel(), _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        some = bits[piece]
        high.view(-1)[piece].copy_(((some + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))
        low.view(-1)[piece].copy_(some.to(torch.int16))


def joined(high: Tensor, low: Tensor) -> Tensor:
    """The float32 whose halves these are: new memory."""
    bits = (high.contiguous().view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
    return bits.view(torch.float32)


def round_to_bfloat16(values: Tensor, out: Tensor) -> None:
    """`out` = finite `values`, fp32, to nearest, ties to even: in integers, so that it is the same
    everywhere. An instruction that PyTorch may use (VCVTNE2PS2BF16) takes the smallest for 0."""
    bits = values.view(torch.int32)
    rounded = (bits >> 16).bitwise_and_(1).add_(bits).add_(0x7FFF).bitwise_right_shift_(16)
    out.view(torch.int16).copy_(rounded)
