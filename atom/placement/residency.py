"""What spare device memory buys: weights that stay, and forwards that are not computed twice.

A resident sub-model is loaded once per optimizer step instead of twice per pass. A kept one is
resident too, and its backward needs no second forward; that costs its activations, once per
micro-batch. What is taken first is what saves most seconds per byte.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace

from atom.placement.memory import Limits, Piece, Reckoning
from atom.swap.arrangement import MINIMUM_SLOTS, Arrangement
from atom.swap.schedule import Shape

PATIENCE = 8
"""After so many sub-models that do not fit, no more are tried."""
MOST_SLOTS = 4
"""More slots load further ahead: that helps where sub-models are of unequal sizes."""


MUCH = 0.1
"""Of the device, for values between sub-models: from there on they may wait on the host."""


def arrangements(reckoning: Reckoning) -> Iterator[Arrangement]:
    """Those worth timing, of those that fit: plain swapping, through two slots or more; weights
    first; activations first. Where values between sub-models take much, the same with them on the
    host, and with as few of them there as fit."""
    yield from _filling(Arrangement(), reckoning)
    for found in _filling(offloaded(reckoning), reckoning) if _is_much(reckoning) else ():
        yield found
        yield from _new(_fewest_offloaded(found, reckoning), found)


def offloaded(reckoning: Reckoning) -> Arrangement:
    """All that is worth it waits on the host."""
    return Arrangement(offloaded=frozenset(range(len(reckoning.pieces))))


def _is_much(reckoning: Reckoning) -> bool:
    """Or too much for anything else to fit."""
    if not reckoning.shape(offloaded(reckoning)).moving:
        return False
    limits = reckoning.limits
    between = limits.micro_batches * sum(piece.out_bytes for piece in reckoning.pieces)
    return between > MUCH * limits.device_bytes or not reckoning.takes(Arrangement())


def waiting(shape: Shape) -> list[int]:
    """Sub-models whose values, or some of them, wait on the host during a training pass."""
    return sorted({shape.crossings[index].made_by for index in shape.moving})


def _fewest_offloaded(arrangement: Arrangement, reckoning: Reckoning) -> Arrangement:
    """The arrangement, which fits, with the values of as few sub-models on the host as fit. Those
    right before the turn stay first: they have the least time for their way there and back."""
    makers = waiting(reckoning.shape(arrangement))

    def with_first(count: int) -> Arrangement:
        return replace(arrangement, offloaded=frozenset(makers[:count]))

    def fits(count: int) -> bool:
        return reckoning.takes(with_first(count))

    if fits(0):  # a few may take more, with the ring that they come back through
        return with_first(0)
    few = bisect_left(range(len(makers)), True, key=fits)
    return with_first(few) if few < len(makers) else arrangement


def _filling(plain: Arrangement, reckoning: Reckoning) -> Iterator[Arrangement]:
    for slots in range(MINIMUM_SLOTS, MOST_SLOTS + 1):
        if reckoning.takes(replace(plain, slots=slots)):
            yield replace(plain, slots=slots)
    yield from _new(_filled(plain, reckoning, _by_load, _with_resident), plain)
    kept = _filled(plain, reckoning, _by_recompute(reckoning.limits), _with_kept)
    yield from _new(kept, plain)
    if kept.kept:
        yield from _new(_filled(kept, reckoning, _by_load, _with_resident), kept)


def _new(arrangement: Arrangement, known: Arrangement) -> Iterator[Arrangement]:
    if arrangement != known:
        yield arrangement


_Order = Callable[[Piece], float]
_Add = Callable[[Arrangement, int], Arrangement]


def _filled(
    arrangement: Arrangement, reckoning: Reckoning, order: _Order, add: _Add
) -> Arrangement:
    """Adds sub-models, most valuable first, later ones first among equals, while they fit.

    Shared slots shrink as residents leave them, so a whole model may fit where no first step does:
    it is tried as well.
    """
    everything, pieces = arrangement, reckoning.pieces
    last = len(pieces) - 1 if add is _with_kept else len(pieces)  # its graph is there anyway
    candidates = sorted(range(last), key=lambda s: (-order(pieces[s]), -s))
    for s in candidates:
        everything = add(everything, s)
    if reckoning.takes(everything):
        return everything
    misses = 0 if reckoning.takes(arrangement) else PATIENCE
    for s in candidates:
        if misses == PATIENCE:
            break
        wider = add(arrangement, s)
        if reckoning.takes(wider):
            arrangement = wider
        else:
            misses += 1
    return arrangement


def _by_load(piece: Piece) -> float:
    """Seconds saved per byte are the link's, whatever the sub-model: the smallest fit best."""
    return -float(piece.elements)


def _by_recompute(limits: Limits) -> _Order:
    def density(piece: Piece) -> float:
        cost = piece.elements * limits.element_bytes + limits.micro_batches * piece.working_bytes
        return limits.micro_batches * piece.forward_s / max(cost, 1)

    return density


def _with_resident(arrangement: Arrangement, sub_model: int) -> Arrangement:
    return replace(arrangement, resident=arrangement.resident | {sub_model})


def _with_kept(arrangement: Arrangement, sub_model: int) -> Arrangement:
    resident, kept = arrangement.resident | {sub_model}, arrangement.kept | {sub_model}
    return replace(arrangement, resident=resident, kept=kept)
