"""Passes that count for nothing, and why."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

import torch

from atom.base.errors import AtomError

_ALLOCATORS = (
    "can't allocate memory",
    "Cannot allocate memory",  # of a file that is mapped
    "CUDA out of memory",
    "CUDA error: out of memory",  # of the driver: a kernel's code, an event, a library's handle
    "_STATUS_ALLOC_FAILED",
)
"""What PyTorch's plain RuntimeErrors say when memory is what was missing."""


class Cause(StrEnum):
    """Names for events and counts."""

    LOSS = "loss-not-finite"
    GRADIENTS = "gradients-not-finite"
    """With a finite loss. In float16 an overflow; the loss scale decides how often."""
    MEMORY = "out-of-memory"
    DEVICE = "device-failed"
    """One of several, with gradients of earlier passes on their way. It is left out."""


class PassVoided(AtomError):
    """A pass went wrong in a way that the next one may not. Parameters are untouched.

    `sequences_lost`: of earlier passes, whose gradients had to be thrown away with this one's;
    filled in by who owns the gradients.
    """

    def __init__(self, cause: Cause, detail: str, sequences_lost: int = 0, hint: str = "") -> None:
        super().__init__(f"the pass is void, {cause.value}: {detail}", hint)
        self.cause = cause
        self.detail = detail
        self.sequences_lost = sequences_lost


def is_out_of_memory(failure: BaseException | None) -> bool:
    """Did the host, a device or one of its libraries run out of memory?"""
    if isinstance(failure, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(failure, RuntimeError) and any(a in str(failure) for a in _ALLOCATORS)


@contextmanager
def voided_by_memory() -> Iterator[None]:
    """Raises: PassVoided for what runs out of memory within."""
    try:
        yield
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        detail = str(failure).partition("\n")[0] or type(failure).__name__
        raise PassVoided(Cause.MEMORY, detail) from failure


def not_finite(losses: Sequence[float]) -> PassVoided:
    """What to raise when a gradient or one of the micro-batches' losses is not finite."""
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            return PassVoided(Cause.LOSS, f"{loss} in micro-batch {index}")
    return PassVoided(Cause.GRADIENTS, "though the loss is finite")


def finite_answers(found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a program gave that gives no loss, in float32. Raises: PassVoided."""
    for number, each in enumerate(found):
        if not torch.isfinite(each).all():
            raise PassVoided(Cause.LOSS, f"what micro-batch {number} gives is not finite")
    return [each.float() for each in found]
