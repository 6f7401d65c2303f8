"""Use spare device memory for weights that stay and for activations that are kept.

A resident sub-model is loaded once per optimizer step instead of twice per pass. A kept sub-model
is resident too, and its backward does not recompute the forward; that costs memory for its
activations of every micro-batch. Sub-models that save most seconds per byte come first. Memory that
is still free then trains sub-models on the device. That shortens optimizer steps; it shortens a
pass only if the pass waits for the link.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from atom.plan.memory import Cut, Limits, Piece
from atom.swap.schedule import Arrangement, Shape

PATIENCE = 8
"""Number of sub-models that may fail to fit before the search stops."""


def arrangements(cut: Cut, devices: int = 1) -> list[Arrangement]:
    """Return the arrangements of a cut that fit and are worth timing.

    These are plain swapping, spare memory for weights, for activations, and for activations before
    weights. A single device also tries each of these with all values between sub-models offloaded,
    and with as few offloaded as fit. If training on the device is allowed, each arrangement found
    is tried with it too.

    Args:
        cut: Sub-models to arrange.
        devices: Size of a group. A group of several offloads no values and trains nothing.
    """
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
    """Return the arrangement that offloads every value for which this pays."""
    return Arrangement(offloaded=frozenset(range(len(cut.pieces))))


def waiting(shape: Shape) -> list[int]:
    """Return the sub-models with outputs that are offloaded during a training pass, ascending."""
    return sorted({shape.crossings[index].made_by for index in shape.moving})


def _fewest_offloaded(arrangement: Arrangement, cut: Cut) -> Arrangement:
    """Offload the values of as few sub-models as possible, given an arrangement that fits.

    Values of the last sub-models are the first to stay, because they have the least time to leave
    and come back before their backward.
    """
    makers = waiting(cut.shape(arrangement))

    def with_first(count: int) -> Arrangement:
        return replace(arrangement, offloaded=frozenset(makers[:count]))

    def fits(count: int) -> bool:
        return cut.fits(with_first(count))

    if fits(0):  # a few may take more than none: they add a ring
        return with_first(0)
    few = bisect_left(range(len(makers)), True, key=fits)
    return with_first(few) if few < len(makers) else arrangement


def _trained(arrangement: Arrangement, cut: Cut) -> Arrangement:
    """Train as many sub-models on the device as fit, given an arrangement that fits.

    Early sub-models come first, because a pass after an optimizer step waits for them first.
    """
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
    """Return sets of sub-models that share parameters, by their first sub-model.

    Each set is trained on the device as a whole, because a parameter can be trained there only if
    all its users are.
    """
    groups = list[tuple[frozenset[int], frozenset[str]]]()
    for s, piece in enumerate(cut.pieces):
        members, names = frozenset({s}), frozenset(piece.parameters)
        for group in [group for group in groups if group[1] & names]:
            members, names = members | group[0], names | group[1]
            groups.remove(group)
        groups.append((members, names))
    return sorted((members for members, _ in groups), key=min)


def _filling(plain: Arrangement, cut: Cut) -> Iterator[Arrangement]:
    """Yield the plain arrangement if it fits, and others that use its spare memory."""
    if cut.fits(plain):
        yield plain
    resident, kept = _filled(plain, cut, keeping=False), _filled(plain, cut, keeping=True)
    both = _filled(kept, cut, keeping=False) if kept.kept else kept
    yield from (each for each in (resident, kept, both) if each != plain)


def _filled(arrangement: Arrangement, cut: Cut, keeping: bool) -> Arrangement:
    """Return the arrangement with more resident sub-models, as many as fit.

    The most valuable sub-models come first; of equals, later ones. The shared slots shrink when
    large sub-models become resident, so all candidates together may fit although none fits alone.
    Therefore they are tried together first.

    Args:
        arrangement: Start, which need not fit.
        cut: Sub-models to arrange.
        keeping: Keep activations too, except for the last sub-model, whose graph stays anyway.
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
    """Return how much a sub-model is worth keeping on the device; only the order matters.

    Without `keeping`, saved loads are worth the same per byte for all sub-models, so small ones
    come first because more of them fit. With `keeping`, the result is the seconds of recomputation
    saved per byte.
    """
    if not keeping:
        return -float(piece.elements)
    cost = piece.elements * limits.element_bytes + limits.micro_batches * piece.working_bytes
    return limits.micro_batches * piece.forward_s / max(cost, 1)
