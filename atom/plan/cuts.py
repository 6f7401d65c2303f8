"""Find cuts that are worth timing: the fastest one for each of several bounds on a sub-model.

The search is a dynamic program. It assumes that all S sub-models of a cut are swapped through two
slots, with C micro-batches in a pass. For sub-model s, F_s and B_s are the seconds of its forward
and backward on all micro-batches, L_s the seconds of its load, and G_s the seconds of copying its
gradients to the host. The paper (arXiv 2403.10504) requires that computing covers every load; here
an uncovered load is allowed and costs its time. With (x)+ = max(x, 0), a pass takes about

    L_0 + G_0                                        nothing computes during these
    + Σ_{s<S-1} (F_s + F_s + B_s) + (F + B)_{S-1}    the last sub-model is not recomputed
    + Σ_{s<S-1} (L_{s+1} - F_s)+                     waiting for loads in the forward
    + Σ_{s<S-2} (L_s - (F + B)_{s+1})+               waiting for loads in the backward
    + Σ_{s<S-1} (G_{s+1} - (F + B)_s)+               waiting until earlier gradients have left

seconds. Waits depend on neighbouring sub-models only. So one loop over the positions, from last to
first, finds the fastest cut among those with no sub-model above the bound. Values that are kept
between sub-models are not bounded here. Instead, each of their bytes costs the seconds of one copy
over the link, so that cuts with few such values win. The caller checks whether a cut fits as a
whole, and a simulated timeline decides which cut is fastest; several bounds give it a few good cuts
to choose from.

The search uses only sums, differences and comparisons of single numbers, so every machine finds the
same cuts.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from atom.graph.chain import Chain, Machine
from atom.plan.memory import Limits, Piece, alone_bytes, piece_of

LONGEST = 64
"""Most positions that a sub-model may span; the time of the search grows with its square."""
STEP = 2**0.5
"""Least ratio of one bound on the bytes of a sub-model to the bound before."""
MOST_STEPS = 12
"""Most bounds below the size of the whole model.

Bounds begin with the smallest that allows a cut. They do not depend on the device, so for the same
positions a larger device can choose among all cuts of a smaller one.
"""

Ends = tuple[int, ...]
_Table = NDArray[np.int64]
_Numbers = NDArray[np.float64]
_Row = tuple[int, int, int, int]
"""Bytes needed, elements, elements with gradients, and kept bytes of one part."""

_TOO_MUCH = 1 << 62
"""Entry of a table for a part that is too long or does not fit."""


@dataclass(frozen=True)
class Parts:
    """Parts of a chain that may become sub-models, and their costs.

    A position is a place in the chain where a cut may fall; position 0 is the beginning of the
    chain. Row i and column k of a table stand for the part between positions i and i + 1 + k.
    """

    ends: Ends
    """Number of operations before position 1, 2, …; the last entry is the length of the chain."""
    forward_s: _Numbers
    """Forward seconds of everything before position 0, 1, …, for one micro-batch."""
    backward_s: _Numbers
    """Backward seconds of everything before position 0, 1, …, without recomputation."""
    need_bytes: _Table
    """Device memory that swapping takes if the part is the largest sub-model."""
    elements: _Table
    gradient_elements: _Table
    kept_bytes: _Table
    """Bytes of values, for one micro-batch, that the part makes and later parts use."""
    whole_bytes: int
    """Device memory that swapping takes if the whole model is one sub-model."""

    def bounds(self, most_bytes: int) -> list[int]:
        """Return the bounds on a sub-model's bytes to try, ascending, none above `most_bytes`."""
        least, most = int(self.need_bytes[:, 0].max()), self.whole_bytes
        factor = max(STEP, (most / max(least, 1)) ** (1 / MOST_STEPS))
        steps = (int(least * factor**step) for step in range(MOST_STEPS))
        return [bound for bound in (*(s for s in steps if s < most), most) if bound <= most_bytes]


def parts_of(chain: Chain, ends: Ends, limits: Limits) -> Parts | None:
    """Return the parts that fit the device by themselves, or None if they do not make up the chain.

    Args:
        chain: Operations and values of the model.
        ends: Places where cuts may fall, ascending; the last one is the end of the chain.
        limits: Memory of the device, and sizes of elements.
    """
    pieces = [piece_of(chain.operations[begin:end]) for begin, end in pairwise((0, *ends))]
    moves, rows = _moves(chain, ends), list[list[_Row]]()
    for begin in range(len(ends)):
        grown = _grown(pieces, moves, begin, limits)
        rows.append(list(takewhile(lambda row: row[0] <= limits.device_bytes, grown)))
        if not rows[-1]:
            return None
    table = np.full((4, len(ends), max(map(len, rows))), _TOO_MUCH, dtype=np.int64)
    for begin, row in enumerate(rows):
        table[:, begin, : len(row)] = np.array(row, dtype=np.int64).T
    return Parts(
        ends=ends,
        forward_s=np.array(list(accumulate((p.forward_s for p in pieces), initial=0.0))),
        backward_s=np.array(list(accumulate((p.backward_s for p in pieces), initial=0.0))),
        need_bytes=table[0],
        elements=table[1],
        gradient_elements=table[2],
        kept_bytes=table[3],
        whole_bytes=alone_bytes(piece_of(chain.operations), limits),
    )


_Moves = list[list[tuple[int, int]]]
"""Changes of the kept bytes at each piece: (bytes, index of the piece that makes the value)."""


def _moves(chain: Chain, ends: Ends) -> _Moves:
    """Return, by piece between neighbouring positions, the changes of the kept bytes.

    A value counts as positive where it is made, and as negative where it is used last.
    """
    moves: _Moves = [[] for _ in ends]
    for value in chain.values:
        maker, user = bisect_right(ends, value.made_by), bisect_right(ends, value.last_used_by)
        if value.made_by >= 0 and not value.shared and maker < user:
            moves[maker].append((value.size_bytes, maker))
            moves[user].append((-value.size_bytes, maker))
    return moves


def _grown(pieces: list[Piece], moves: _Moves, begin: int, limits: Limits) -> Iterator[_Row]:
    """Yield the table entries of the parts that begin at a position, from short to long."""
    parameters, frozen, working, peak, kept = dict[str, int](), frozenset[str](), 0, 0, 0
    for number in range(begin, min(begin + LONGEST, len(pieces))):
        piece = pieces[number]
        parameters.update(piece.parameters)
        frozen |= piece.frozen
        peak = max(peak, working + piece.activation_bytes)
        working += piece.working_bytes
        kept += sum(size for size, maker in moves[number] if maker >= begin)
        longer = Piece(parameters, 0.0, 0.0, working, peak - working, frozen=frozen)
        yield alone_bytes(longer, limits), longer.elements, longer.gradient_elements, kept


def fastest_cut(parts: Parts, machine: Machine, limits: Limits, most_bytes: int) -> Ends:
    """Return the ends of the fastest cut with no sub-model above a bound.

    Args:
        parts: Parts that may become sub-models.
        machine: Rates of the link.
        limits: Sizes of elements; a pass has `limits.micro_batches` micro-batches.
        most_bytes: Most bytes that a sub-model may need; one of `parts.bounds`.
    """
    fits = parts.need_bytes <= most_bytes
    assert fits[:, 0].all(), "what one position holds is within every bound"
    fits = fits[:, : int(fits.sum(axis=1).max())]
    count, width = fits.shape
    kept_s = parts.kept_bytes / machine.load_bytes_per_s
    seconds = _Seconds.of(parts, machine, limits)
    computed_s = seconds.forward + seconds.again
    cost_s, following = np.full((count, width), np.inf), np.zeros((count, width), dtype=np.int64)
    """Seconds of the best cut that continues with a part, and the column of the part after it."""
    for begin in range(max(0, count - width), count):
        if fits[begin, count - begin - 1]:
            cost_s[begin, count - begin - 1] = seconds.again[count] - seconds.again[begin]
    for middle in range(count - 1, 0, -1):
        begins = np.arange(max(0, middle - width), middle)
        before = begins, middle - begins - 1
        rest_s = seconds.waiting(before, middle, min(width, count - middle))
        rest_s += cost_s[middle, : rest_s.shape[1]]
        following[before] = best = rest_s.argmin(axis=1)
        found_s = computed_s[middle] - computed_s[begins] + kept_s[before]
        found_s += rest_s[np.arange(len(begins)), best]
        cost_s[before] = np.where(fits[before], found_s, np.inf)
    total_s = seconds.load[0, :width] + seconds.gradient[0, :width] + cost_s[0]
    return _followed(parts.ends, following, int(total_s.argmin()))


@dataclass(frozen=True)
class _Seconds:
    """Seconds of a pass with all its micro-batches.

    `forward` and `again` have one entry per position, the sum over everything before it. `load` and
    `gradient` are tables by part.
    """

    forward: _Numbers
    again: _Numbers
    """Seconds of a recomputed forward and a backward."""
    load: _Numbers
    gradient: _Numbers

    @classmethod
    def of(cls, parts: Parts, machine: Machine, limits: Limits) -> "_Seconds":
        forward = parts.forward_s * limits.micro_batches
        again = forward + parts.backward_s * limits.micro_batches
        loads, leaves = (
            each.astype(np.float64) for each in (parts.elements, parts.gradient_elements)
        )
        load = loads * (limits.element_bytes / machine.load_bytes_per_s)
        gradient = leaves * (limits.gradient_element_bytes * machine.gradient_byte_s)
        return cls(forward, again, load, gradient)

    def waiting(self, before: tuple[_Table, _Table], middle: int, columns: int) -> _Numbers:
        """Return the waits of parts `before` a position (rows) and of parts after it (columns)."""
        forward = (self.forward[middle] - self.forward[before[0]])[:, None]
        again = (self.again[middle] - self.again[before[0]])[:, None]
        later = self.again[middle + 1 : middle + 1 + columns] - self.again[middle]
        turn = len(self.again) - middle - 2  # the part before the last one is still loaded
        later[turn:] = np.inf
        waits = np.maximum(self.load[middle, :columns] - forward, 0)
        waits += np.maximum(self.gradient[middle, :columns] - again, 0)
        waits += np.maximum(self.load[before][:, None] - later, 0)
        return np.asarray(waits)


def _followed(ends: Ends, following: _Table, first: int) -> Ends:
    position, column, found = 0, first, list[int]()
    while True:
        position, column = position + column + 1, int(following[position, column])
        found.append(ends[position - 1])
        if position == len(ends):
            return tuple(found)
