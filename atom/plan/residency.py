"""What spare device memory buys: weights that stay, and forwards that are not computed twice.

A resident sub-model is loaded once per optimizer step instead of twice per pass. A kept one is
resident too, and its backward needs no second forward; that costs its activations, once per
micro-batch. What is taken first is what saves most seconds per byte.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from atom.plan.memory import Reckoning
from atom.plan.offloading import fewest_offloaded
from atom.plan.pieces import Piece
from atom.swap.arrangement import MINIMUM_SLOTS, Arrangement
from atom.swap.device_slots import FLOAT32_BYTES

PATIENCE = 8
"""Where values wait on the host, memory is short and what to reckon is long: after so many that do
not fit, no more are tried."""
MOST_SLOTS = 4
"""More slots load further ahead: that helps where sub-models are of unequal sizes."""


@dataclass(frozen=True)
class Budget:
    """The most an arrangement may hold."""

    device_bytes: int
    micro_batches: int
    element_bytes: int
    host_bytes: int | None = None
    """For values that wait on the host. None: as much as it takes."""
    gradient_element_bytes: int = FLOAT32_BYTES
    """In which they leave."""


def arrangements(
    pieces: Sequence[Piece], budget: Budget, plain: Arrangement | None = None
) -> Iterator[Arrangement]:
    """Those worth timing: plain swapping, through two slots or more; weights first; activations
    first. All fit `budget`. `plain` says what is offloaded; each is there a second time with as
    little of that as fits."""
    each = budget.element_bytes, budget.gradient_element_bytes
    room = _Room(Reckoning(pieces, budget.micro_batches, *each), budget)
    for found in _filling(pieces, budget, plain or Arrangement(), room):
        yield found
        if found.offloaded:
            yield from _new(fewest_offloaded(room.reckoning.shape(found), room.takes), found)


def _filling(
    pieces: Sequence[Piece], budget: Budget, plain: Arrangement, room: "_Room"
) -> Iterator[Arrangement]:
    for slots in range(MINIMUM_SLOTS + 1, MOST_SLOTS + 1):
        if room.takes(replace(plain, slots=slots)):
            yield replace(plain, slots=slots)
    if room.takes(plain):
        yield plain
    by_load = _filled(pieces, plain, room, _by_load, _with_resident)
    yield from _new(by_load, plain)
    kept = _filled(pieces, plain, room, _by_recompute(budget), _with_kept)
    yield from _new(kept, plain)
    if kept.kept:
        yield from _new(_filled(pieces, kept, room, _by_load, _with_resident), kept)


@dataclass(frozen=True)
class _Room:
    reckoning: Reckoning
    budget: Budget

    def takes(self, arrangement: Arrangement) -> bool:
        if not self.reckoning.fits(arrangement, self.budget.device_bytes):
            return False
        most = self.budget.host_bytes
        return most is None or self.reckoning.host_bytes(arrangement) <= most


def _new(arrangement: Arrangement, known: Arrangement) -> Iterator[Arrangement]:
    if arrangement != known:
        yield arrangement


_Order = Callable[[Piece], float]
_Add = Callable[[Arrangement, int], Arrangement]


def _filled(
    pieces: Sequence[Piece], arrangement: Arrangement, room: _Room, order: _Order, add: _Add
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
    if room.takes(everything):
        return everything
    misses = 0
    for s in candidates:
        wider = add(arrangement, s)
        if room.takes(wider):
            arrangement = wider
        elif arrangement.offloaded and (misses := misses + 1) == PATIENCE:
            break
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
    return replace(arrangement, resident=arrangement.resident | {sub_model})


def _with_kept(arrangement: Arrangement, sub_model: int) -> Arrangement:
    resident, kept = arrangement.resident | {sub_model}, arrangement.kept | {sub_model}
    return replace(arrangement, resident=resident, kept=kept)
