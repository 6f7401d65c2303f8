"""Gradients on the host: whether they may be added, to what, and the sums themselves.

The gate: a pass's gradients go through while they are finite, then none. The check costs one
reading of each gradient where it is: by the thread that adds (on the CPU), behind the backward (on
a GPU). The thread that launches kernels never waits for it. Smallest and largest element say it
all: both are NaN if any element is, and infinite if the extreme one is.

The losses are looked at together with the first gradients. These are the last sub-model's, which
leave when all losses are known: a pass with a bad loss adds nothing at all.

Sums are made on several cores: one cannot keep up with a fast link.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from atom.base.errors import AtomError
from atom.swap.host_kernels import host_kernels
from atom.swap.landing_order import LandingOrder

PIECE_ELEMENTS = 2**20
_Result = TypeVar("_Result")


class NotFinite(AtomError):
    """A gradient or loss of this pass is infinite or no number."""


class Gate:
    """One per pass. The engine shows it losses; the gradients' lane asks it, piece after piece."""

    def __init__(
        self,
        landed: Callable[[Sequence["HostSum"]], None] | None = None,
        order: LandingOrder | None = None,
        number: int = 0,
    ) -> None:
        """`landed`: told by the lane what has been added, after each addition. `order`: in which
        passes of several devices land, this one as the `number`th."""
        self.landed = landed
        self._order, self._number = order, number
        self.expects = False
        """Gradients of the pass are on their way here."""
        self.touched = False
        """Something of the pass may have reached the gradient arena."""
        self.failure: BaseException | None = None
        """What kept gradients that were admitted from reaching it."""
        self._losses: list[Tensor] = []
        self._closed = False

    def show(self, loss: Tensor) -> None:
        """A loss that must be finite for anything to go through from now on."""
        self._losses.append(loss.detach())

    def extremes(self, sums: Sequence["HostSum"]) -> Tensor:
        """Of these gradients, and of losses that no gradients were asked about before."""
        losses, self._losses = self._losses, []
        return extremes([*losses, *(part.source for part in sums if not part.is_here)])

    def admits(self, extremes: Tensor, adds: bool) -> bool:
        """May the piece with these extremes be added? `adds`: is there anything in it.

        Raises: NotFinite for the first piece that is not finite; those behind it are turned away.
        """
        if self._closed:
            return False
        if not torch.isfinite(extremes).all():
            self._closed = True
            raise NotFinite("a gradient or loss of this pass is not finite")
        self.touched |= adds
        return True

    def has_landed(self, sub_model: int) -> bool:
        """Were the pass's gradients of it added before it was broken off?"""
        return self._order is not None and self._order.has_landed(sub_model, self._number)

    def turn(self, sub_model: int) -> AbstractContextManager[None]:
        """Wraps their addition."""
        return self._order.turn(sub_model, self._number) if self._order else nullcontext()

    @contextmanager
    def landing(self) -> Iterator[None]:
        """Wraps what brings gradients to the arena. What breaks it off is kept: the pass may have
        been counted by then."""
        try:
            yield
        except NotFinite:
            raise
        except BaseException as failure:
            self.failure = failure
            if self._order is not None:  # passes after this one would wait for ever
                self._order.stop(self._number, failure)
            raise


def extremes(values: Iterable[Tensor]) -> Tensor:
    """Smallest and largest element of each value that has any, [even number] float32: all finite if
    every element is. On the values' device; waits for nothing."""
    filled = [value.detach() for value in values if value.numel() > 0]
    if not filled:
        return torch.empty(0)
    return torch.stack([extreme.float() for value in filled for extreme in torch.aminmax(value)])


@dataclass(frozen=True)
class HostSum:
    """Bring `source` [n] from the device to the host: add it to `destination` [n], or replace; both
    float32, or bfloat16. What is to be replaced is worth nothing: it may be overwritten before the
    gate is asked. Or the destination is on the device itself, float32: then nothing moves.
    """

    destination: Tensor
    source: Tensor
    replace: bool
    noise_key: int = 0
    """What sums in bfloat16 are rounded with: see `add_rounded`."""
    first: int = 0
    """The number of the first element, which the noise depends on."""
    last: bool = True
    """The pass adds nothing more to this destination."""
    sub_model: int = 0
    """Whose gradients they are."""
    is_here: bool = False
    """The source is on the host, and was judged when it came."""
    waits: bool = False
    """There, for an earlier sub-model: what the pass before left may wait there still."""

    @property
    def stays(self) -> bool:
        """Whether the destination is on a GPU itself: nothing leaves."""
        return self.destination.device.type != "cpu"


def landing(sums: Sequence[HostSum], staging: Tensor) -> list[HostSum]:
    """The same sums, of what will lie on the host: what is to be added in `staging`, one behind the
    other; what replaces, where it belongs, unless something may lie there."""
    landed, offset = [], 0
    for part in sums:
        if part.stays or part.is_here:
            landed.append(part)
            continue
        if part.replace and not part.waits:
            landed.append(replace(part, source=part.destination))
            continue
        end = offset + part.source.numel()
        landed.append(replace(part, source=staging[offset:end]))
        offset = end
    return landed


@torch.no_grad()
def add_admitted(sums: Sequence[HostSum], gate: Gate, extremes: Tensor) -> None:
    """Carries out the sums if the gate admits them; source and destination are on one device.

    Raises: NotFinite.
    """
    with gate.landing():
        if not gate.admits(extremes, adds=len(sums) > 0):
            return
        if not sums:
            return
        with gate.turn(sums[0].sub_model):
            for part in sums:
                if not part.replace:
                    _add(part)
                elif part.source is not part.destination:
                    part.destination.copy_(part.source)
            if gate.landed is not None:
                gate.landed(sums)


def _add(part: HostSum) -> None:
    if part.stays:
        part.destination.add_(part.source)
    elif part.destination.dtype == torch.float32:
        add(part.destination, part.source)
    else:
        add_rounded(part.destination, part.source, part.first, part.noise_key)


def add(total: Tensor, addend: Tensor) -> None:
    """`total` [n] float32 += `addend` [n], float32 or bfloat16; flat, on the host. On as many
    threads as PyTorch may use; they do not show in the bits.

    Raises: MismatchError when the kernel has not been compiled.
    """
    kernels = host_kernels()

    def add_piece(start: int, stop: int) -> None:
        kernels.add(total[start:stop], addend[start:stop])

    _in_pieces(add_piece, total.numel())


def add_rounded(total: Tensor, addend: Tensor, first: int, noise_key: int) -> None:
    """`total` [n] += `addend` [n], both bfloat16; flat, on the host: the exact sum, rounded up or
    down with such probabilities that it is right in the mean. Rounded to nearest, a sum that has
    become 256 times its addends would stay where it is.

    The random bits are a function of `noise_key` (64 bits) and the element's number, which counts
    from `first`. Threads do not show. Raises: as `add`.
    """
    kernels = host_kernels()

    def add_piece(start: int, stop: int) -> None:
        kernels.add_rounded(total[start:stop], addend[start:stop], first + start, noise_key)

    _in_pieces(add_piece, total.numel())


def _in_pieces(add_piece: Callable[[int, int], None], elements: int) -> None:
    starts, threads = range(0, elements, PIECE_ELEMENTS), torch.get_num_threads()
    if threads <= 1 or len(starts) <= 1:
        add_piece(0, elements)
        return
    on_threads(lambda at: add_piece(at, min(at + PIECE_ELEMENTS, elements)), starts, threads)


def on_threads(
    work: Callable[[int], _Result], starts: Sequence[int], threads: int
) -> list[_Result]:
    """What `work` makes of each. Raises: what it raised."""
    return list(_pool(threads).map(work, starts))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept until the process ends, as PyTorch keeps its own threads: a pass adds dozens of times,
    and a thread takes longer to start than to add its piece."""
    return ThreadPoolExecutor(threads, "atom-sum")
