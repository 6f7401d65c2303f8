"""Number formats in which a replica stores its weights, and the arenas of its state.

A *split* weight is a float32 in two halves. The high half is a bfloat16, the weight rounded to
nearest. The device loads this half, so no separate copy is needed. The low half is the 16 bits that
were cut off. No information is lost: high · 2¹⁶ + low, with the low half read as a signed number,
are the bits of the float32.

Ties are rounded away from zero, not to even. Rounding to even maps 2¹⁶ + 1 neighbours to a bfloat16
whose last bit is 0, one more than 16 bits can distinguish.
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
"""Elements that are split at a time, so that temporary results stay in the cache."""


@dataclass(frozen=True)
class StateArena:
    """Declaration of a flat tensor of a replica's state: its dtype and parameter layout.

    Parameters may be missing, and may have other shapes here than in the model.
    """

    dtype: torch.dtype
    layout: ParameterLayout

    @property
    def elements(self) -> int:
        """Number of elements of the trained parameters; the arena holds no others."""
        return self.layout.trained_elements

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.dtype.itemsize


class StateForm(StrEnum):
    """Form in which a replica stores weights and optimizer state.

    All peers of a swarm use the same form, because each form gives different bits.
    """

    EXACT = "exact"
    """Weights in float32; in 16-bit precisions the device loads a rounded copy."""
    SPLIT = "split"
    """Split weights, with the precision of float32 but without the copy; bfloat16 only."""
    HALF = "half"
    """Split weights, and optimizer state rounded to 16 bits by the optimizer; bfloat16 only."""

    @property
    def splits(self) -> bool:
        """True if the weights are split into halves."""
        return self is not StateForm.EXACT

    @property
    def weight_dtypes(self) -> Mapping[str, torch.dtype]:
        """Dtype of each arena of master weights, by name."""
        return {HIGH: torch.bfloat16, LOW: torch.int16} if self.splits else {MASTER: torch.float32}

    def require(self, precision: torch.dtype) -> None:
        """Check that sub-models which compute in `precision` can load this form.

        Raises:
            ValueError: They cannot.
        """
        if self.splits and precision != torch.bfloat16:
            raise ValueError(f"state {self.value} requires weights in bfloat16, not {precision}")


def split(value: Tensor, high: Tensor, low: Tensor) -> None:
    """Split float32 weights into halves.

    Args:
        value: Weights in float32.
        high: Receives the high halves: bfloat16, contiguous, of the same shape.
        low: Receives the low halves: int16, contiguous, of the same shape.
    """
    bits = value.contiguous().view(-1).view(torch.int32)
    for start in range(0, bits.numel(), _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        chunk = bits[piece]
        high.view(-1)[piece].copy_(((chunk + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))
        low.view(-1)[piece].copy_(chunk.to(torch.int16))


def joined(high: Tensor, low: Tensor) -> Tensor:
    """Return the float32 weights with these halves, in new memory."""
    bits = (high.contiguous().view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
    return bits.view(torch.float32)


def round_to_bfloat16(values: Tensor, out: Tensor) -> None:
    """Round finite float32 `values` to the nearest bfloat16 in `out`, ties to even.

    Integer operations give the same result on every machine. An instruction that PyTorch may use
    (VCVTNE2PS2BF16) treats subnormal numbers as 0.
    """
    bits = values.view(torch.int32)
    rounded = (bits >> 16).bitwise_and_(1).add_(bits).add_(0x7FFF).bitwise_right_shift_(16)
    out.view(torch.int16).copy_(rounded)
