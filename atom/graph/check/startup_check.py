"""What to compare with eager before training: decided from sizes, carried out by the caller.

A program is compared with its model bit by bit. That takes the model's values, its gradients and
the program's in memory at once, so a large model is represented by a smaller one of the same make;
where there is none, the check is left out, and the user is told.
"""

import enum
from dataclasses import dataclass

from torch import nn

from atom.base.units import format_bytes

COPIES = 4
"""Parameters, eager gradients, the program's gradients, and one more while a sum is made."""

DEFAULT_LIMIT_BYTES = 4 * 2**30


class Subject(enum.Enum):
    """What is compared with eager."""

    SHRUNK = "shrunk"
    WHOLE = "whole"
    NOTHING = "nothing"


@dataclass(frozen=True)
class StartupCheck:
    """`reason` is for the log; for `NOTHING` it is a warning that the user must see."""

    subject: Subject
    reason: str


def decide_startup_check(
    whole_bytes: int, shrunk_bytes: int | None, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> StartupCheck:
    """Which model to verify. Sizes are `parameter_bytes` of the model and of a smaller one of the
    same make (None: there is none). The activations of one micro-batch come on top of the limit.

    The whole model is the better witness: what only one of its layers does shows in it alone. It
    is taken where it costs no more than the shrunk one, and where nothing else is to be had.
    """
    if shrunk_bytes is not None and shrunk_bytes < whole_bytes:
        if shrunk_bytes * COPIES <= limit_bytes:
            return StartupCheck(Subject.SHRUNK, "a smaller model of the same make is compared")
        return StartupCheck(Subject.NOTHING, _too_large("even its smaller make", shrunk_bytes))
    if whole_bytes * COPIES <= limit_bytes:
        return StartupCheck(Subject.WHOLE, "the model itself is compared")
    return StartupCheck(Subject.NOTHING, _too_large("the model", whole_bytes))


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, tied ones once; a model on `meta` has them too."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _too_large(what: str, size_bytes: int) -> str:
    return (
        f"the split model is NOT compared with the plain one: {what} takes "
        f"{format_bytes(size_bytes * COPIES)} for that; make one with fewer layers and compare it "
        "once (atom.graph.check.verify.verify_against_eager)"
    )
