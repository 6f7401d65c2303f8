"""Void passes, which count for nothing, and their causes."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

import torch

from atom.base.errors import AtomError

_OUT_OF_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",  # from mapping a file
    "CUDA out of memory",
    "CUDA error: out of memory",  # from the driver, for code, events or handles
    "_STATUS_ALLOC_FAILED",
)
"""Texts in PyTorch's plain RuntimeErrors that mean lack of memory."""


class Cause(StrEnum):
    """Names of causes in events and counts."""

    LOSS = "loss-not-finite"
    GRADIENTS = "gradients-not-finite"
    """Gradients are not finite although the loss is.

    In float16 this is an overflow; the loss scale decides how often it happens.
    """
    MEMORY = "out-of-memory"
    DEVICE = "device-failed"
    """One of several devices failed while gradients of earlier passes were on their way."""


class PassVoided(AtomError):
    """Error of a failed pass that may be tried again; the parameters are unchanged.

    `sequences_lost` counts sequences of earlier passes whose gradients had to be dropped too. The
    owner of the gradients fills it in.
    """

    def __init__(
        self,
        cause: Cause,
        detail: str,
        sequences_lost: int = 0,
        hint: str = "",
        message: str | None = None,
    ) -> None:
        super().__init__(message or f"the pass is void, {cause.value}: {detail}", hint)
        self.cause = cause
        self.detail = detail
        self.sequences_lost = sequences_lost


def is_out_of_memory(failure: BaseException | None) -> bool:
    """Return True if the host, a device or one of its libraries ran out of memory."""
    if isinstance(failure, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(failure, RuntimeError) and any(a in str(failure) for a in _OUT_OF_MEMORY)


@contextmanager
def voided_by_memory() -> Iterator[None]:
    """Raise PassVoided instead of an out-of-memory error in the `with` block."""
    try:
        yield
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        detail = str(failure).partition("\n")[0] or type(failure).__name__
        raise PassVoided(Cause.MEMORY, detail) from failure


def not_finite(losses: Sequence[float]) -> PassVoided:
    """Return the error for a pass with a loss or gradient that is not finite.

    Args:
        losses: Losses of the micro-batches that were computed.
    """
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            return PassVoided(Cause.LOSS, f"{loss} in micro-batch {index}")
    return PassVoided(Cause.GRADIENTS, "though the loss is finite")


def finite_answers(found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return outputs of a program without a loss, in float32.

    Raises:
        PassVoided: An output is not finite.
    """
    for number, each in enumerate(found):
        if not torch.isfinite(each).all():
            raise PassVoided(Cause.LOSS, f"the output of micro-batch {number} is not finite")
    return [each.float() for each in found]
