"""What spare device memory buys: weights that stay, and forwards that are not computed twice.

A resident sub-model is loaded once per optimizer step instead of twice per pass. A kept one is
resident too, and its backward needs no second forward; that costs its activations, once per
micro-batch. What is taken first is what saves most seconds per byte. What is left then trains
sub-models on the device: that shortens steps, and a pass only where the link holds it up.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from atom.placement.memory import Cut, Limits, Piece
from atom.swap.arrangement import Arrangement
from atom.swap.schedule import Shape

PATIENCE = 8
"""After so many sub-models that do not fit, no more are tried."""


def arrangements(cut: Cut, devices: int = 1) -> list[Arrangement]:
    """Those worth timing, of those that fit: plain swapping; weights first; activations first. The
    same with values between sub-models on the host, and with as few of them there as fit: not in a
    group of several `devices`, which holds more of them."""
    found = list(_filling(Arrangement(devices=devices), cut))
    if devices > 1:
        return list(dict.fromkeys(found))
    every = offloaded(cut)
    if cut.shape(every).moving:
        for each in _filling(every, cut):
            found += [each, _fewest_offloaded(each, cut)]
    if cut.limits.trained_element_bytes:
        found += [_trained(each, cut) for each in found]
    return list(dict.fromkeys(found))


def offloaded(cut: Cut) -> Arrangement:
    """All that is worth it waits on the host."""
    return Arrangement(offloaded=frozenset(range(len(cut.pieces))))


def waiting(shape: Shape) -> list[int]:
    """Sub-models whose values, or some of them, wait on the host during a training pass."""
    return sorted({shape.crossings[index].made_by for index in shape.moving})


def _fewest_offloaded(arrangement: Arrangement, cut: Cut) -> Arrangement:
    """The arrangement, which fits, with the values of as few sub-models on the host as fit. Those
    right before the turn stay first: they have the least time for their way there and back."""
    makers = waiting(cut.shape(arrangement))

    def with_first(count: int) -> Arrangement:
        return replace(arrangement, offloaded=frozenset(makers[:count]))

    def fits(count: int) -> bool:
        return cut.fits(with_first(count))

    if fits(0):  # a few may take more, with the ring that they come back through
        return with_first(0)
    few = bisect_left(range(len(makers)), True, key=fits)
    return with_first(few) if few < len(makers) else arrangement


def _trained(arrangement: Arrangement, cut: Cut) -> Arrangement:
    """The arrangement, which fits, with as many sub-models trained on the device as fit too: those
    first for which the pass after a step would wait first."""
    misses = 0
    for group in _sharing(cut):
        resident, trained = arrangement.resident | group, arrangement.trained | group
        wider = replace(arrangement, resident=resident, trained=trained)
        if cut.fits(wider):
            arrangement = wider
        elif (misses := misses + 1) == PATIENCE:
            break
    return arrangement


def _sharing(cut: Cut) -> list[frozenset[int]]:
    """Sub-models that share parameters, in order of the first: a parameter lives on the device only
    if all that use it are trained there."""
    groups = list[tuple[frozenset[int], frozenset[str]]]()
    for s, piece in enumerate(cut.pieces):
        members, names = frozenset({s}), frozenset(piece.parameters)
        for group in [group for group in groups if group[1] & names]:
            members, names = members | group[0], names | group[1]
            groups.remove(group)
        groups.append((members, names))
    return sorted((members for members, _ in groups), key=min)


def _filling(plain: Arrangement, cut: Cut) -> Iterator[Arrangement]:
    """The plain one, and what is made of it, where they fit."""
    if cut.fits(plain):
        yield plain
    resident, kept = _filled(plain, cut, keeping=False), _filled(plain, cut, keeping=True)
    both = _filled(kept, cut, keeping=False) if kept.kept else kept
    yield from (each for each in (resident, kept, both) if each != plain)


def _filled(arrangement: Arrangement, cut: Cut, keeping: bool) -> Arrangement:
    """Lets sub-models stay, most valuable first, later ones first among equals, while they fit.
    `keeping`: their activations as well, but for the last one's, which are there anyway.

    Shared slots shrink as residents leave them, so a whole model may fit where no first step does:
    it is tried as well.
    """

    def with_more(arrangement: Arrangement, *more: int) -> Arrangement:
        kept = arrangement.kept.union(more) if keeping else arrangement.kept
        return replace(arrangement, resident=arrangement.resident.union(more), kept=kept)

    worth = [_worth(piece, cut.limits, keeping) for piece in cut.pieces]
    candidates = sorted(range(len(worth) - keeping), key=lambda s: (-worth[s], -s))
    if cut.fits(everything := with_more(arrangement, *candidates)):
        return everything
    misses = 0 if cut.fits(arrangement) else PATIENCE
    for s in candidates:
        if misses == PATIENCE:
            break
        if cut.fits(wider := with_more(arrangement, s)):
            arrangement = wider
        else:
            misses += 1
    return arrangement


def _worth(piece: Piece, limits: Limits, keeping: bool) -> float:
    """Loads save the same per byte, whatever the sub-model: the smallest fit best. `keeping`:
    seconds that are saved per byte where nothing is computed twice."""
    if not keeping:
        return -float(piece.elements)
    cost = piece.elements * limits.element_bytes + limits.micro_batches * piece.working_bytes
    return limits.micro_batches * piece.forward_s / max(cost, 1)
