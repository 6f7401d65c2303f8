"""Gradients that a replica has accumulated, and the amount of data that they came from."""

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
    """Gradient of a step: a flat host tensor, or an object that decodes slices on demand."""

    @property
    def dtype(self) -> torch.dtype:
        """Either float32 or bfloat16."""

    def numel(self) -> int:
        """Return the number of elements."""

    def __getitem__(self, elements: slice, /) -> Tensor: ...


def require_flat(numbers: FlatNumbers, elements: int) -> None:
    """Raise ValueError unless `numbers` has that many elements and suits the kernels."""
    flat = not isinstance(numbers, Tensor) or (
        numbers.dim() == 1 and numbers.is_contiguous() and numbers.device.type == "cpu"
    )
    if not flat or numbers.numel() != elements or numbers.dtype not in GRADIENT_FORMATS:
        actual = f"a gradient of {numbers.numel()} {numbers.dtype}{'' if flat else ', not flat,'}"
        expected = f"a flat tensor of {elements} elements on the host, float32 or bfloat16"
        raise ValueError(f"{actual} does not fit: expected {expected}")


@dataclass
class GradientArena:
    """Gradient sums over sequences since the last `reset` or local step.

    Not synchronised: passes and reads must take turns.
    """

    flat: torch.Tensor
    """[trained elements] float32 or bfloat16 on the host; the engine adds to it."""
    wait_added: Callable[[], None] = lambda: None
    """Function that returns when the engine has added all gradients that were counted."""
    sequences: int = field(default=0, init=False)
    """Number of counted sequences that no round has taken yet."""
    unspent: int = field(default=0, init=False)
    """Number of counted sequences whose gradients are still in `flat`; `spend` makes it 0."""
    loss_sum: float = field(default=0.0, init=False)
    """Sum over all counted sequences of their mean loss, in nats."""
    unspent_loss_sum: float = field(default=0.0, init=False)
    """Sum of the losses of the `unspent` sequences, in nats."""
    void: bool = field(default=False, init=False)
    """True if the content of `flat` is obsolete, so that the next pass overwrites all of it."""
    on_device: DeviceState | None = None
    """Device state with the sums of some parameters.

    `flat` has the values that these sums had when `sums` was last read.
    """
    squares: Mapping[int, float] = field(default_factory=dict, init=False)
    """Sums of squares of blocks of `flat`, as `gradient_norm` takes them; valid between passes."""

    @property
    def sums(self) -> torch.Tensor:
        """Gradient sums [trained elements] on the host, with all counted gradients.

        Reading the property waits until all gradients are added. Call `changed` after writing to
        the tensor.

        Raises:
            PassVoided: Some gradients were lost; the unspent sequences no longer count.
        """
        try:
            self.wait_added()
        except PassVoided as void:
            if not self.void:  # the sums of a void arena are obsolete anyway
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
        """Copy changed sums from the host to the device, and forget sums of squares."""
        self.squares = {}
        if self.on_device is not None:
            self.on_device.sums_to_device()

    @contextmanager
    def accumulating(self, touched: Callable[[], bool]) -> Iterator[None]:
        """Wrap one pass that writes its gradients into `flat`; keep `void` and the counts right.

        The pass adds to `flat`, or overwrites it if `void` is set. A pass that succeeds clears
        `void`.

        Args:
            touched: Function that is asked after an interrupted pass: True if gradients of the pass
                may be in `flat`. Then the unspent sequences are dropped.
        """
        self.squares = {}
        try:
            yield
        except BaseException:
            if touched():
                self.lose()
            raise
        self.void = False

    def count(self, sequences: int, loss_sum: float) -> None:
        """Count the sequences and losses of the pass that was just added."""
        self.sequences += sequences
        self.unspent += sequences
        self.loss_sum += loss_sum
        self.unspent_loss_sum += loss_sum

    def spend(self) -> None:
        """Mark the sums as used by a local step; the sequences stay counted. Writes no memory."""
        self.void = True
        self.unspent, self.unspent_loss_sum = 0, 0.0

    @property
    def spent(self) -> tuple[int, float]:
        """Counted sequences that local steps have used, and the sum of their losses."""
        return self.sequences - self.unspent, self.loss_sum - self.unspent_loss_sum

    def lose(self) -> int:
        """Drop the unspent gradients and their counts; return the number of sequences lost."""
        lost = self.unspent
        self.taken(lost, self.unspent_loss_sum)
        self.spend()
        return lost

    def taken(self, sequences: int, loss_sum: float) -> None:
        """Subtract sequences that went into a round, or were lost, from the counts."""
        self.sequences = max(self.sequences - sequences, 0)
        self.loss_sum = self.loss_sum - loss_sum if self.sequences else 0.0

    def reset(self) -> None:
        """Start counting from zero. Writes no memory, so a reader of the sums may continue."""
        self.spend()
        self.sequences, self.loss_sum = 0, 0.0
