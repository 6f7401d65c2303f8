"""Cuts that are worth timing: by dynamic programming, the fastest for every size of a slot.

A cut into S sub-models is swapped plainly, through two slots, with C micro-batches in a pass. Of
sub-model s let F_s and B_s be seconds of its forward and backward of all micro-batches, L_s and G_s
those of loading it and of sending its gradients out. The paper (arXiv 2403.10504) demands that
computing covers every load; here what is not covered costs the time it takes. A pass takes about

    L_0 + G_0                                        nothing computes meanwhile
    + Σ_{s<S-1} (F_s + F_s + B_s) + (F + B)_{S-1}    the last one is not computed twice
    + Σ_{s<S-1} (L_{s+1} - F_s)+                     waiting for loads, forward
    + Σ_{s<S-2} (L_s - (F + B)_{s+1})+               and backward
    + Σ_{s<S-1} (G_{s+1} - (F + B)_s)+               and for gradients to be out

seconds. Waiting concerns neighbours only, so one pass over the positions from right to left finds
the cut that takes least, of those whose sub-models need at most so many bytes one by one. What is
kept between sub-models is not limited here: each of its bytes is charged the seconds in which the
link carries it, so that a cut keeps few. Whether a cut fits as a whole is reckoned by who asked,
and the timeline says which is fastest: several bounds make a handful of good cuts.

Only sums, differences and comparisons of single numbers: every machine finds the same cuts.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from atom.graph.chain import Chain, Machine
from atom.placement.memory import Limits, Piece, alone_bytes, piece_of

LONGEST = 64
"""Positions that a sub-model spans, at most: the search grows with its square."""
STEP = 2**0.5
MOST_STEPS = 12
"""Bounds on the bytes of a sub-model lie this factor apart, or further, so that there are no
more: from the least that works to the whole model's. They do not depend on the device, so with
the same places a larger one has all cuts of a smaller one to choose from."""

Ends = tuple[int, ...]
_Table = NDArray[np.int64]
_Numbers = NDArray[np.float64]
_Row = tuple[int, int, int, int]

_TOO_MUCH = 1 << 62


@dataclass(frozen=True)
class Parts:
    """What may be a sub-model. Of tables, row i and column k are what lies between positions i and
    i + 1 + k; position 0 is the chain's beginning."""

    ends: Ends
    """Operations before position 1, 2, …"""
    forward_s: _Numbers
    """Per position from 0, of one micro-batch, all before it."""
    backward_s: _Numbers
    need_bytes: _Table
    """If it is the largest one."""
    elements: _Table
    gradient_elements: _Table
    kept_bytes: _Table
    """Of one micro-batch, made in it and used behind it."""
    whole_bytes: int
    """Needed by the model as one."""

    def bounds(self, most_bytes: int) -> list[int]:
        """On the bytes of a sub-model, up to `most_bytes`."""
        least, most = int(self.need_bytes[:, 0].max()), self.whole_bytes
        factor = max(STEP, (most / max(least, 1)) ** (1 / MOST_STEPS))
        steps = (int(least * factor**step) for step in range(MOST_STEPS))
        return [bound for bound in (*(s for s in steps if s < most), most) if bound <= most_bytes]


def parts_of(chain: Chain, ends: Ends, limits: Limits) -> Parts | None:
    """Those between `ends`, the last of which is the chain's, that fit the device one by one. None
    if there is no cut into such."""
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


def _moves(chain: Chain, ends: Ends) -> _Moves:
    """Per piece (bytes, maker) of the values that it makes for later ones; below zero, of those
    that it is the last to use."""
    moves: _Moves = [[] for _ in ends]
    for value in chain.values:
        maker, user = bisect_right(ends, value.made_by), bisect_right(ends, value.last_used_by)
        if value.made_by >= 0 and not value.shared and maker < user:
            moves[maker].append((value.size_bytes, maker))
            moves[user].append((-value.size_bytes, maker))
    return moves


def _grown(pieces: list[Piece], moves: _Moves, begin: int, limits: Limits) -> Iterator[_Row]:
    """Bytes needed, elements, those of gradients, and bytes kept, of ever longer parts."""
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
    """Into parts that need at most `most_bytes` each, which is one of the `bounds`. A pass has as
    many micro-batches as `limits` allow."""
    fits = parts.need_bytes <= most_bytes
    assert fits[:, 0].all(), "what one position holds is within every bound"
    fits = fits[:, : int(fits.sum(axis=1).max())]
    count, width = fits.shape
    kept_s = parts.kept_bytes / machine.load_bytes_per_s
    seconds = _Seconds.of(parts, machine, limits)
    cost_s, following = np.full((count, width), np.inf), np.zeros((count, width), dtype=np.int64)
    """Of what begins with a part, from there on; and the column of the part behind it."""
    for begin in range(max(0, count - width), count):
        if fits[begin, count - begin - 1]:
            cost_s[begin, count - begin - 1] = seconds.again[count] - seconds.again[begin]
    for middle in range(count - 1, 0, -1):
        begins = np.arange(max(0, middle - width), middle)
        before = begins, middle - begins - 1
        rest_s = seconds.waiting(before, middle, min(width, count - middle))
        rest_s += cost_s[middle, : rest_s.shape[1]]
        following[before] = best = rest_s.argmin(axis=1)
        found_s = seconds.computing(begins, middle) + kept_s[before]
        found_s += rest_s[np.arange(len(begins)), best]
        cost_s[before] = np.where(fits[before], found_s, np.inf)
    total_s = seconds.load[0, :width] + seconds.gradient[0, :width] + cost_s[0]
    return _followed(parts.ends, following, int(total_s.argmin()))


@dataclass(frozen=True)
class _Seconds:
    """Of a pass, at all places. Per position what comes before it, per part what it takes."""

    forward: _Numbers
    again: _Numbers
    """Forward and backward."""
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

    def computing(self, begins: _Table, end: int) -> _Numbers:
        both = self.forward + self.again
        return np.asarray(both[end] - both[begins])

    def waiting(self, before: tuple[_Table, _Table], middle: int, columns: int) -> _Numbers:
        """For each other, of parts `before` a position (rows) and of those behind it."""
        forward = (self.forward[middle] - self.forward[before[0]])[:, None]
        again = (self.again[middle] - self.again[before[0]])[:, None]
        later = self.again[middle + 1 : middle + 1 + columns] - self.again[middle]
        turn = len(self.again) - middle - 2  # what was before the turn is still there
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
