"""A workbench: pieces of host memory are brought to the device, worked on, and taken back.

It has an order of its own beside the passes'. Its places hold a piece each, so that while one is
worked on, the next is on its way in and the one before on its way out.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Overwrite the first with the second: flat, contiguous, of one length and type."""


class Workbench(Protocol):
    """For one thread, which need not be the engine's. Errors of the device are raised here, at the
    latest by who waits."""

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        """Starts copying in, and then `work`: operations on the device, which follow the work of
        whatever was brought before. What lay in this place must have been waited for."""
        ...

    def wait_worked(self, place: int) -> None:
        """Returns when the work on what was brought there last is done."""
        ...

    def take_back(self, place: int, pairs: Sequence[Pair]) -> None:
        """Starts copying to the host. After `wait_worked`."""
        ...

    def wait_back(self, place: int) -> None:
        """Returns when the host has what was taken back from there last."""
        ...

    def rest(self) -> None:
        """Returns when nothing is under way."""
        ...


class CpuWorkbench:
    """Where the device is the host: everything is done at once."""

    def bring(self, place: int, pairs: Sequence[Pair], work: Callable[[], None]) -> None:
        copy_all(pairs)
        with torch.no_grad():
            work()

    def wait_worked(self, place: int) -> None:
        """It is."""

    def take_back(self, place: int, pairs: Sequence[Pair]) -> None:
        copy_all(pairs)

    def wait_back(self, place: int) -> None:
        """It is there."""

    def rest(self) -> None:
        """Nothing ever is."""


@torch.no_grad()
def copy_all(pairs: Sequence[Pair]) -> None:
    for destination, source in pairs:
        destination.copy_(source, non_blocking=True)
