"""Addition of gradients on the host, and the gate that admits or refuses them.

The gate lets a pass's gradients through until one of them is not finite, and none afterwards. The
check reads each gradient once where it is: on the CPU the adding thread does so, on a GPU the check
runs after the backward. The thread that launches kernels never waits for it. The smallest and the
largest element suffice: both are NaN if any element is NaN, and one of them is infinite if any
element is.

The losses are checked together with the first gradients. These belong to the last sub-model and
leave when all losses are known, so a pass with a bad loss adds nothing.

Passes of several devices are added to one arena in the order of their numbers (`AdditionOrder`), so
the bits do not depend on the device or the speed of a pass. The order remembers which gradients
were added: a pass that is interrupted and computed again, on any device, adds only the others.

Several cores add, because a single one cannot keep up with a fast link.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from atom.base.clock import Clock
from atom.base.errors import AtomError
from atom.swap.host_kernels import host_kernels

PIECE_ELEMENTS = 2**20
_Result = TypeVar("_Result")


class NotFinite(AtomError):
    """Error of a pass with an infinite or NaN gradient or loss."""


class AdditionStopped(AtomError):
    """Error of gradients that waited for their turn when the passes were interrupted."""


class AdditionOrder:
    """Order of additions to one arena. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._next = defaultdict[int, int](int)
        """Number of the pass whose gradients are next, by sub-model."""
        self.is_torn = False
        """True if an addition failed since the last `go_on`, so an unknown part of it was made."""
        self._stopped_at = math.inf
        """First pass whose gradients are no longer added; the same holds for later passes."""
        self.failure: BaseException | None = None
        """First error since the last `go_on` that kept gradients from being added."""
        self._waited_s: defaultdict[int, float] = defaultdict(float)

    def waited_s(self, number: int) -> float:
        """Return and clear the seconds that gradients of a pass have waited for their turns."""
        return self._waited_s.pop(number, 0.0)

    def is_added(self, sub_model: int, number: int) -> bool:
        """Return True if the pass's gradients of this sub-model have been added."""
        with self._changed:
            return self._next[sub_model] > number

    @contextmanager
    def turn(self, sub_model: int, number: int) -> Iterator[None]:
        """Wrap the addition of a pass's gradients, and first wait for its turn.

        Raises:
            AdditionStopped: The passes were interrupted.
        """
        began = self._clock.now()
        with self._changed:
            self._changed.wait_for(
                lambda: number >= self._stopped_at or number <= self._next[sub_model]
            )
            if number >= self._stopped_at:
                raise AdditionStopped("another device failed") from self.failure
            self._waited_s[number] += self._clock.now() - began
        try:
            yield
        except BaseException:
            self.is_torn = True
            raise
        with self._changed:
            self._next[sub_model] = max(self._next[sub_model], number + 1)
            self._changed.notify_all()

    def stop(self, number: int, failure: BaseException | None = None) -> None:
        """Stop additions of this and later passes until `go_on`.

        Waiting threads get AdditionStopped.

        Args:
            number: Number of the pass.
            failure: Error that interrupted the pass.
        """
        with self._changed:
            self._stopped_at = min(number, self._stopped_at)
            if not isinstance(failure, AdditionStopped):
                self.failure = self.failure or failure
            self._changed.notify_all()

    def go_on(self, number: int | None = None) -> None:
        """Allow additions again after `stop`. Call it while no work is under way.

        Args:
            number: Pass that is next, if all earlier ones were added or never will be; None: no
                change.
        """
        with self._changed:
            self._stopped_at, self.failure, self.is_torn = math.inf, None, False
            self._waited_s.clear()
            if number is not None:
                self._next = defaultdict[int, int](lambda: number)


class Gate:
    """Gate of one pass, which admits finite gradients.

    The engine gives it the losses; the gradients' thread asks it before each addition.
    """

    def __init__(
        self,
        on_added: Callable[[Sequence["HostSum"]], None] | None = None,
        order: AdditionOrder | None = None,
        number: int = 0,
    ) -> None:
        """Create an open gate.

        Args:
            on_added: Receives additions that were made; the gradients' thread calls it after each.
            order: Order in which passes of several devices are added.
            number: Number of this pass in the order.
        """
        self.on_added = on_added
        self._order, self._number = order, number
        self.gradients_sent = False
        """True if gradients of the pass are on their way to the arena."""
        self.touched = False
        """True if gradients of the pass may have reached the arena."""
        self.failure: BaseException | None = None
        """Error that kept admitted gradients from reaching the arena."""
        self._losses: list[Tensor] = []
        self._closed = False

    def add_loss(self, loss: Tensor) -> None:
        """Require that a loss is finite before any further gradients are admitted."""
        self._losses.append(loss.detach())

    def extremes(self, sums: Sequence["HostSum"]) -> Tensor:
        """Return smallest and largest elements of the gradients, and of losses not yet checked."""
        losses, self._losses = self._losses, []
        return extremes([*losses, *(part.source for part in sums if not part.on_host)])

    def admits(self, extremes: Tensor, adds: bool) -> bool:
        """Return True if gradients with these extremes may be added.

        Args:
            extremes: Smallest and largest elements.
            adds: True if there is anything to add.

        Raises:
            NotFinite: These are the first gradients of the pass that are not finite. All later ones
                are refused.
        """
        if self._closed:
            return False
        if not torch.isfinite(extremes).all():
            self._closed = True
            raise NotFinite("a gradient or loss of this pass is not finite")
        self.touched |= adds
        return True

    def is_added(self, sub_model: int) -> bool:
        """Return True if the sub-model's gradients were added before the pass was interrupted."""
        return self._order is not None and self._order.is_added(sub_model, self._number)

    def turn(self, sub_model: int) -> AbstractContextManager[None]:
        """Return a context for adding the sub-model's gradients, in the order of passes."""
        return self._order.turn(sub_model, self._number) if self._order else nullcontext()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Wrap work that brings gradients to the arena, and keep its error.

        The error is kept because the pass may already have been counted.
        """
        try:
            yield
        except NotFinite:
            raise
        except BaseException as failure:
            self.failure = failure
            if self._order is not None:  # later passes would wait without end
                self._order.stop(self._number, failure)
            raise


def extremes(values: Iterable[Tensor]) -> Tensor:
    """Return the smallest and largest element of each non-empty value: [even number] float32.

    All of them are finite if all elements are. They are on the values' device, and nothing waits
    for them.
    """
    filled = [value.detach() for value in values if value.numel() > 0]
    if not filled:
        return torch.empty(0)
    return torch.stack([extreme.float() for value in filled for extreme in torch.aminmax(value)])


@dataclass(frozen=True)
class HostSum:
    """Addition of `source` [n] from the device to `destination` [n] on the host.

    It replaces the destination's content if `replace` is set; that content may be lost before the
    gate decides. Both tensors are float32 or bfloat16. If the destination is on the device itself,
    float32, no data moves to the host.
    """

    destination: Tensor
    source: Tensor
    replace: bool
    noise_key: int = 0
    """Key of the noise for stochastic rounding of bfloat16 sums (`add`)."""
    first: int = 0
    """Arena number of the first element, which decides the noise."""
    last: bool = True
    """True if the pass adds nothing more to this destination."""
    sub_model: int = 0
    """Sub-model that the gradients belong to."""
    on_host: bool = False
    """True if the source is on the host already, where it was checked when it arrived."""
    waits_on_host: bool = False
    """True if the destination holds the sum for an earlier sub-model.

    It may still hold a sum of the previous pass.
    """

    @property
    def stays_on_gpu(self) -> bool:
        """True if the destination is on the GPU, so that nothing leaves."""
        return self.destination.device.type != "cpu"


def with_host_sources(sums: Sequence[HostSum], staging: Tensor) -> list[HostSum]:
    """Return the same additions with the sources that they have after the copy to the host.

    Sources to be added are copied to `staging`, one after the other. Sources that replace are
    copied straight to their destination, unless a sum may still be waiting there.
    """
    on_host, offset = [], 0
    for part in sums:
        if part.stays_on_gpu or part.on_host:
            on_host.append(part)
            continue
        if part.replace and not part.waits_on_host:
            on_host.append(replace(part, source=part.destination))
            continue
        end = offset + part.source.numel()
        on_host.append(replace(part, source=staging[offset:end]))
        offset = end
    return on_host


@torch.no_grad()
def add_admitted(sums: Sequence[HostSum], gate: Gate, extremes: Tensor) -> None:
    """Add a sub-model's gradients to their sums, unless the gate refuses them.

    Args:
        sums: Additions, each with source and destination on one device. They may be empty.
        gate: Gate of the pass.
        extremes: Smallest and largest elements of the gradients, and of losses not yet checked
            (`Gate.extremes`).

    Raises:
        NotFinite: A source or loss is not finite.
    """
    with gate.adding():
        if not gate.admits(extremes, adds=len(sums) > 0):
            return
        if not sums:
            return
        with gate.turn(sums[0].sub_model):
            for part in sums:
                if part.stays_on_gpu and not part.replace:
                    part.destination.add_(part.source)
                elif not part.replace:
                    add(part.destination, part.source, part.first, part.noise_key)
                elif part.source is not part.destination:
                    part.destination.copy_(part.source)
            if gate.on_added is not None:
                gate.on_added(sums)


def add(total: Tensor, addend: Tensor, first: int = 0, noise_key: int = 0) -> None:
    """Add `addend` [n] to `total` [n]; both flat, on the host.

    Uses as many threads as PyTorch may use; the number does not change the bits.

    A bfloat16 total is rounded stochastically: the exact sum is rounded up or down with such
    probabilities that its mean is exact. If it were rounded to nearest, a sum that is 256 times its
    addends would no longer change.

    Args:
        total: float32 or bfloat16; overwritten with the sum.
        addend: Numbers to add: float32 or bfloat16, and bfloat16 to a bfloat16 total.
        first: Number of the first element; the noise is a function of an element's number and the
            key.
        noise_key: Key of the noise, 64 bits.

    Raises:
        MismatchError: The kernel has not been compiled.
    """
    kernels, elements = host_kernels(), total.numel()

    def add_piece(start: int) -> None:
        piece = slice(start, start + PIECE_ELEMENTS)
        if total.dtype == torch.float32:
            kernels.add(total[piece], addend[piece])
        else:
            kernels.add_rounded(total[piece], addend[piece], first + start, noise_key)

    on_threads(add_piece, range(0, elements, PIECE_ELEMENTS), torch.get_num_threads())


def on_threads(
    work: Callable[[int], _Result], starts: Sequence[int], threads: int
) -> list[_Result]:
    """Return the results of `work` for all starts, computed on several threads if that helps."""
    if threads <= 1 or len(starts) <= 1:
        return list(map(work, starts))
    return list(_pool(threads).map(work, starts))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of threads, kept until the process ends.

    A pass adds dozens of times, and starting a thread takes longer than the addition of one piece.
    """
    return ThreadPoolExecutor(threads, "atom-sum")
