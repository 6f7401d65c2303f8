"""The gate before the host's sums: a pass's gradients go through while they are finite, then none.

The check costs one reading of each gradient by whoever has it at hand: the thread that adds (on the
CPU), the out stream (on a GPU). The thread that launches kernels never waits for it. Smallest and
largest element say it all: both are NaN if any element is, and infinite if the extreme one is.

The losses are looked at together with the first gradients. These are the last sub-model's, which
leave when all losses are known: a pass with a bad loss adds nothing at all.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from atom.base.errors import AtomError


class NotFinite(AtomError):
    """A gradient or loss of this pass is infinite or no number."""


class Gate:
    """One per pass. The engine shows it losses; the gradients' lane asks it, piece after piece."""

    def __init__(self) -> None:
        self.expects = False
        """Gradients of the pass are on their way here."""
        self.touched = False
        """Something of the pass may have reached the gradient arena."""
        self._losses: list[Tensor] = []
        self._closed = False

    def show(self, loss: Tensor) -> None:
        """A loss that must be finite for anything to go through from now on."""
        self._losses.append(loss.detach())

    def judge(self, sources: Sequence[Tensor]) -> Tensor | bool:
        """Are these gradients and the losses finite? On their device; waits for nothing."""
        return all_finite([*self._losses, *sources])

    def admits(self, verdict: Tensor | bool, adds: bool) -> bool:
        """May the piece that was judged be added? `adds`: is there anything in it.

        Raises: NotFinite for the first piece that is not; those behind it are turned away.
        """
        if self._closed:
            return False
        if not bool(verdict):
            self._closed = True
            raise NotFinite("a gradient or loss of this pass is not finite")
        self._losses.clear()
        self.touched |= adds
        return True


def all_finite(values: Iterable[Tensor]) -> Tensor | bool:
    """Are all elements of all values finite? On the values' device; waits for nothing."""
    filled = [value.detach() for value in values if value.numel() > 0]
    if not filled:
        return True
    extremes = [extreme.float() for value in filled for extreme in torch.aminmax(value)]
    return torch.isfinite(torch.stack(extremes)).all()
