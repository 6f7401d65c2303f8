"""Gradients that a replica has accumulated since its state, and of how much data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from atom.swap.device_state import DeviceState
from atom.swap.host_kernels import GRADIENT_FORMATS
from atom.swap.voided import PassVoided


class FlatNumbers(Protocol):
    """What a step may be taken on: a flat tensor on the host, or what decodes stretches of one as
    they are asked for."""

    @property
    def dtype(self) -> torch.dtype:
        """float32 or bfloat16."""
        ...

    def numel(self) -> int: ...

    def __getitem__(self, elements: slice, /) -> Tensor: ...


def require_flat(numbers: FlatNumbers, elements: int) -> None:
    """Raises: ValueError unless they are so many, in a form and type that the kernels read."""
    flat = not isinstance(numbers, Tensor) or (
        numbers.dim() == 1 and numbers.is_contiguous() and numbers.device.type == "cpu"
    )
    if not flat or numbers.numel() != elements or numbers.dtype not in GRADIENT_FORMATS:
        what = f"a gradient of {numbers.numel()} {numbers.dtype}{'' if flat else ', not flat,'}"
        wanted = f"a flat tensor of {elements} on the host, float32 or bfloat16"
        raise ValueError(f"{what} does not fit: wanted is {wanted}")


def nothing_leaves() -> None:
    """Whatever is counted has been summed."""


@dataclass
class GradientArena:
    """Sums over sequences since the last `reset`, or own step. Not synchronised: passes and reads
    take turns."""

    flat: torch.Tensor
    """[total elements] float32 or bfloat16, on the host; summed into by the engine."""
    landed: Callable[[], None] = nothing_leaves
    """Returns when the engine has summed all that was counted."""
    tag: bytes = b""
    """The head that they are counted for."""
    sequences: int = field(default=0, init=False)
    unspent: int = field(default=0, init=False)
    """Of `sequences`, those whose gradients `flat` holds: fewer after `spend`."""
    loss_sum: float = field(default=0.0, init=False)
    """Summed mean loss per sequence, nats."""
    unspent_loss_sum: float = field(default=0.0, init=False)
    """Of the `unspent`."""
    void: bool = field(default=False, init=False)
    """`flat` holds what a reset has done away with: the next pass replaces it, all of it."""
    on_device: DeviceState | None = None
    """Where some of the sums are: `flat` holds what they were when it was asked for last."""
    squares: Mapping[int, float] = field(default_factory=dict, init=False)
    """Of blocks of `flat`, as `gradient_norm` may know them, when all has landed."""

    @property
    def sums(self) -> torch.Tensor:
        """The gradients, on the host. Waits until they are there; raises what `landed` does. What
        was unspent counts no more after a PassVoided. Who changes them calls `changed`."""
        try:
            self.landed()
        except PassVoided as void:
            if not self.void:  # else it is nothing to us
                void.sequences_lost = self.lose()
                raise
        if self.void:
            self.flat.zero_()
            self.changed()
            self.void = False
        elif self.on_device is not None:
            self.on_device.sums_to_host()
        return self.flat

    def changed(self) -> None:
        self.squares = {}
        if self.on_device is not None:
            self.on_device.sums_to_device()

    @contextmanager
    def accumulating(self, touched: Callable[[], bool]) -> Iterator[None]:
        """Wraps a pass that adds to `flat`, or replaces it if it was `void` before. What interrupts
        the pass costs what is unspent if `touched()` says that a part of it may be there; what was
        void stays void."""
        self.squares = {}
        try:
            yield
        except BaseException:
            if touched():
                self.lose()
            raise
        self.void = False

    def count(self, sequences: int, loss_sum: float) -> None:
        """Notes what the pass just added."""
        self.sequences += sequences
        self.unspent += sequences
        self.loss_sum += loss_sum
        self.unspent_loss_sum += loss_sum

    def spend(self) -> None:
        """A step of this peer's own has used the sums up; what was counted stays counted. Touches
        no memory, as `reset`."""
        self.void = True
        self.unspent, self.unspent_loss_sum = 0, 0.0

    @property
    def spent(self) -> tuple[int, float]:
        """Sequences that own steps have used, of those counted, and their loss sum."""
        return self.sequences - self.unspent, self.loss_sum - self.unspent_loss_sum

    def lose(self) -> int:
        """What is unspent is no more, and counts for nothing. How many sequences that were."""
        lost = self.unspent
        self.taken(lost, self.unspent_loss_sum)
        self.spend()
        return lost

    def taken(self, sequences: int, loss_sum: float) -> None:
        """So many of those that were counted are in a round, or lost; the others stay counted."""
        self.sequences = max(self.sequences - sequences, 0)
        self.loss_sum = self.loss_sum - loss_sum if self.sequences else 0.0

    def reset(self, tag: bytes = b"") -> None:
        """Starts again from nothing, at the state named by `tag`. Touches no memory: who reads
        the sums of the time before may go on."""
        self.spend()
        self.sequences, self.loss_sum = 0, 0.0
        self.tag = tag  # last: whoever reads it before the count never takes an old one for new
