"""What spare device memory buys: weights that stay, and forwards that are not computed twice.

A resident sub-model is loaded once per optimizer step instead of twice per pass. A kept one is
resident too, and its backward needs no second forward; that costs its activations, once per
micro-batch. What is taken first is what saves most seconds per byte.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from atom.plan.memory import device_memory
from atom.plan.pieces import Piece
from atom.swap.arrangement import MINIMUM_SLOTS, Arrangement

MOST_SLOTS = 4
"""More slots load further ahead: that helps where sub-models are of unequal sizes."""


@dataclass(frozen=True)
class Budget:
    """The most an arrangement may hold."""

    device_bytes: int
    micro_batches: int
    element_bytes: int


def arrangements(pieces: Sequence[Piece], budget: Budget) -> Iterator[Arrangement]:
    """Those worth timing: plain swapping, through two slots or more; weights first; activations
    first. All fit `budget`."""
    for slots in range(MINIMUM_SLOTS + 1, MOST_SLOTS + 1):
        if _fits(pieces, Arrangement(slots), budget):
            yield Arrangement(slots)
    plain = Arrangement()
    if _fits(pieces, plain, budget):
        yield plain
    by_load = _filled(pieces, plain, budget, _by_load, _with_resident)
    yield from _new(by_load, plain)
    kept = _filled(pieces, plain, budget, _by_recompute(budget), _with_kept)
    yield from _new(kept, plain)
    if kept.kept:
        yield from _new(_filled(pieces, kept, budget, _by_load, _with_resident), kept)


def _new(arrangement: Arrangement, known: Arrangement) -> Iterator[Arrangement]:
    if arrangement != known:
        yield arrangement


_Order = Callable[[Piece], float]
_Add = Callable[[Arrangement, int], Arrangement]


def _filled(
    pieces: Sequence[Piece], arrangement: Arrangement, budget: Budget, order: _Order, add: _Add
) -> Arrangement:
    """Adds sub-models, most valuable first, later ones first among equals, while they fit.

    Shared slots shrink as residents leave them, so a whole model may fit where no first step does:
    it is tried as well.
    """
    everything = arrangement
    last = len(pieces) - 1 if add is _with_kept else len(pieces)  # its graph is there anyway
    candidates = sorted(range(last), key=lambda s: (-order(pieces[s]), -s))
    for s in candidates:
        everything = add(everything, s)
    if _fits(pieces, everything, budget):
        return everything
    for s in candidates:
        wider = add(arrangement, s)
        if _fits(pieces, wider, budget):
            arrangement = wider
    return arrangement


def _by_load(piece: Piece) -> float:
    """Seconds saved per byte are the link's, whatever the sub-model: the smallest fit best."""
    return -float(piece.elements)


def _by_recompute(budget: Budget) -> _Order:
    def density(piece: Piece) -> float:
        cost = piece.elements * budget.element_bytes + budget.micro_batches * piece.working_bytes
        return budget.micro_batches * piece.forward_s / max(cost, 1)

    return density


def _with_resident(arrangement: Arrangement, sub_model: int) -> Arrangement:
    return Arrangement(arrangement.slots, arrangement.resident | {sub_model}, arrangement.kept)


def _with_kept(arrangement: Arrangement, sub_model: int) -> Arrangement:
    return Arrangement(
        arrangement.slots, arrangement.resident | {sub_model}, arrangement.kept | {sub_model}
    )


def _fits(pieces: Sequence[Piece], arrangement: Arrangement, budget: Budget) -> bool:
    memory = device_memory(pieces, arrangement, budget.micro_batches, budget.element_bytes)
    return memory.total_bytes <= budget.device_bytes
