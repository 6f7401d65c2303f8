"""What a member brings to an exchange, and what its codec takes away of it."""

from abc import ABC, abstractmethod

import numpy
import torch
from torch import Tensor


class Contribution(ABC):
    """Numbers of all elements, times sequences. Any thread; each element is read before something
    is taken away of it, and in one exchange that happens once. A mean that this contribution is in
    can only be there after all of that."""

    keeps_lost: bool
    """Whether it wants to hear of what was taken away."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Tensor:
        """Of elements [start, stop): fp32, for reading."""

    @abstractmethod
    def lacks(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        """What was sent lacks so much, fp32, from element `start` on. `lost` is used again.

        sequences: 0: of this contribution. Else of a sum over members, which this one encoded; a
            member has so many of its sequences on average.
        """

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether all numbers are."""


class Sums(Contribution):
    """Numbers that lie in memory, and what they lack."""

    def __init__(self, numbers: Tensor, lost: Tensor | None = None) -> None:
        """`numbers`: flat fp32 or bfloat16, only read. `lost`: fp32, written."""
        self._numbers, self._lost = numbers, lost
        self.keeps_lost = lost is not None

    def part(self, start: int, stop: int) -> Tensor:
        return self._numbers[start:stop].float()

    def lacks(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        assert self._lost is not None
        numpy.copyto(self._lost[start : start + lost.numel()].numpy(), lost.numpy())

    def is_finite(self) -> bool:
        return all_finite(self._numbers)


def all_finite(numbers: Tensor) -> bool:
    """Whether all of them are; on as many threads as PyTorch may use."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(numbers))).all())
