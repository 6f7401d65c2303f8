"""Contribution of a member to an exchange, and the error that encoding adds to it."""

from abc import ABC, abstractmethod

import numpy
import torch
from torch import Tensor


class Contribution(ABC):
    """One member's addend: for each element its gradient or weight difference, times sequences.

    Thread-safe. In one exchange, `part` reads each element before `record_lost` reports its error,
    and `record_lost` reports the error of each element once. All reports come before the mean is
    complete.
    """

    keeps_lost: bool
    """True if encoding errors are to be reported by `record_lost`."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Tensor:
        """Return the elements [start, stop) as fp32; the caller only reads them."""

    @abstractmethod
    def record_lost(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        """Take the part of an encoding error that a later contribution has to make up for.

        Args:
            start: Element at which `lost` begins.
            lost: Numbers before encoding minus the decoded ones, times `Codec.given_back`; fp32, in
                the unit of `part`. The memory is used again after the call.
            sequences: 0 if this contribution was encoded. Else a sum over members was encoded here,
                and this is the average number of sequences per member.
        """

    @abstractmethod
    def is_finite(self) -> bool:
        """Return True if all numbers are finite."""


class Sums(Contribution):
    """Contribution in a tensor; the encoding error is written to another tensor."""

    def __init__(self, numbers: Tensor, lost: Tensor | None = None) -> None:
        """Create a contribution.

        Args:
            numbers: Flat fp32 or bfloat16 tensor; only read.
            lost: Flat fp32 tensor for the encoding error; None if it is not needed.
        """
        self._numbers, self._lost = numbers, lost
        self.keeps_lost = lost is not None

    def part(self, start: int, stop: int) -> Tensor:
        return self._numbers[start:stop].float()

    def record_lost(self, start: int, lost: Tensor, sequences: float = 0.0) -> None:
        assert self._lost is not None
        numpy.copyto(self._lost[start : start + lost.numel()].numpy(), lost.numpy())

    def is_finite(self) -> bool:
        return all_finite(self._numbers)


def all_finite(numbers: Tensor) -> bool:
    """Return True if all numbers are finite. Uses as many threads as PyTorch may use."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(numbers))).all())
