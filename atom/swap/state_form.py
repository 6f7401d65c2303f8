"""In which numbers a replica keeps its weights and moments: 12, or down to 8 bytes per parameter.

A *split* weight is a float32 in two halves. The high one is a bfloat16, the weight rounded to
nearest, and is what the device loads: there is no working copy beside it. The low one is the 16
bits that were cut off. Nothing is lost: high · 2¹⁶ + low, the low half read as a signed number,
are the float32's bits.

Ties are rounded away from zero in it, not to even. Around a bfloat16 whose last bit is 0, to even
rounds 2¹⁶ + 1 neighbours to it, one more than 16 bits can tell apart.
"""

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor

MASTER, HIGH, LOW = "master", "master_high", "master_low"
MOMENTS = ("exp_avg", "exp_avg_sq")
_PIECE_ELEMENTS = 2**16
"""Split at a time: what lies in between stays in the cache, and no page is taken for it."""


class StateForm(StrEnum):
    """Part of what a swarm agrees on: each form gives other bits."""

    EXACT = "exact"
    """float32 weights and moments, and a rounded copy for the device in 16-bit precisions."""
    SPLIT = "split"
    """bfloat16 only. Split weights, float32 moments: as precise, without the copy."""
    HALF = "half"
    """bfloat16 only. Split weights, moments in bfloat16, rounded at random: up or down with such
    probabilities that the mean is right, since most changes of a mean are smaller than the
    distance of two bfloat16 numbers."""

    @property
    def splits(self) -> bool:
        return self is not StateForm.EXACT

    def arenas(self) -> Mapping[str, torch.dtype]:
        """The arenas that make up a replica's state: names, and types of their elements."""
        halves = {HIGH: torch.bfloat16, LOW: torch.int16}
        weights = halves if self.splits else {MASTER: torch.float32}
        moments = torch.bfloat16 if self is StateForm.HALF else torch.float32
        return {**weights, **dict.fromkeys(MOMENTS, moments)}

    @property
    def element_bytes(self) -> int:
        """Of the state, for each parameter: what a snapshot takes."""
        return sum(dtype.itemsize for dtype in self.arenas().values())

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
