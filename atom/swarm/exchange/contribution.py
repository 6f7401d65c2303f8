"""What a member brings to an exchange, and what its codec takes away of it."""

from abc import ABC, abstractmethod

import numpy
import torch
from torch import Tensor


class Contribution(ABC):
    """Numbers of all elements. Any thread; each element is read before something is taken away of
    it, and in one exchange that happens once."""

    keeps_lost: bool
    """Whether it wants to hear of what was taken away."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Tensor:
        """Of elements [start, stop): fp32, for reading."""

    @abstractmethod
    def lacks(self, start: int, lost: Tensor) -> None:
        """So much was taken away, fp32, from element `start` on: the numbers less what was sent, or
        the sum of a part that we own less what everybody uses. `lost` is used again afterwards."""

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

    def lacks(self, start: int, lost: Tensor) -> None:
        assert self._lost is not None
        numpy.copyto(self._lost[start : start + lost.numel()].numpy(), lost.numpy())

    def is_finite(self) -> bool:
        return bool(torch.isfinite(torch.stack(torch.aminmax(self._numbers))).all())
