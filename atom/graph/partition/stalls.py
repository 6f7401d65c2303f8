"""What neighbouring sub-models wait for each other.

Of spans a = (i, j) and b = (j, m), in ticks:

    (load b - forward a)+ + (gradients b - again a)+ + (load a - again b)+,

the last term only if a needs a load in the backward. Each term is a convex function of a sum of
something that only grows with a's length and something that only falls with b's (or the other way
round): the matrix over (length of a, end of b) is Monge. So the best end of b never moves left as
a grows, and with many spans the row minima are found by halving strides instead of by trying all
pairs.

Blocks of a model repeat, and so do the stalls around a position: where spans are short, a matrix is
computed once for all positions that have the same.
"""

from dataclasses import dataclass, field

import numpy as np

from atom.graph.partition.spans import Spans, Whole

_CACHED_PAIRS = 12_000_000
_DIRECT_PAIRS = 1 << 14


@dataclass
class Stalls:
    """Stalls are given in prices: ticks · 2^bits."""

    spans: Spans
    bits: int
    slots: int
    columns: list[slice] = field(init=False)
    """Per position the indices of the spans that begin there and are not the last."""
    _matrices: dict[tuple[int, bool], Whole] = field(default_factory=dict)
    """By the first position that has it."""
    _alike: dict[int, int] = field(default_factory=dict)
    """Position → the first with the same stalls."""
    _known: dict[bytes, int] = field(default_factory=dict)
    _cached_pairs: int = 0

    def __post_init__(self) -> None:
        spans, count = self.spans, self.spans.count
        heres = (spans.beginning_at(begin) for begin in range(count))
        reaching = (spans.stop == count).tolist()
        self.columns = [
            slice(here.start, here.stop - last) for here, last in zip(heres, reaching, strict=True)
        ]

    def pairs(self) -> int:
        """Of neighbours, about, that are looked at to find the least at all positions."""
        spans, positions = self.spans, np.arange(self.spans.count)
        pairs = (positions - spans.first[:-1]) * (spans.stop - positions)
        return int(np.minimum(pairs, _DIRECT_PAIRS).sum())

    def before_turn(self, position: int) -> Whole:
        """Of every span ending there and the last sub-model beginning there."""
        turn = np.array(self.spans.count)
        return self._waits(position, self._begins(position), turn, charged=False)

    def row(self, position: int, begin: int, charged: bool) -> Whole:
        """Of span (begin, position) and every span beginning at the position but the last's."""
        return self._waits(position, np.array(begin), self._ends(position), charged)

    def between(self, begin: int, position: int, end: int, charged: bool) -> int:
        """Of spans (begin, position) and (position, end)."""
        return int(self._waits(position, np.array(begin), np.array(end), charged))

    def least(self, position: int, prices: Whole, charged: bool) -> Whole:
        """Per span ending there, ascending begins: the least of stall + price over the spans that
        begin there (`prices`, by ascending ends, without the last sub-model's)."""
        rows, columns = position - int(self.spans.first[position]), len(prices)
        known = self._matrices.get((self._alike.get(position, position), charged))
        if known is not None:
            return np.asarray((known + prices).min(axis=1))
        if self._is_kept(rows * columns):
            return np.asarray((self._keep(position, charged) + prices).min(axis=1))
        begins = self._begins(position)
        if rows * columns <= _DIRECT_PAIRS:
            matrix = self._waits(position, begins[:, None], self._ends(position)[None, :], charged)
            return np.asarray((matrix + prices).min(axis=1))
        return self._least_by_halving(position, begins[::-1], prices, charged)[::-1]

    def _begins(self, position: int) -> Whole:
        return np.arange(int(self.spans.first[position]), position)

    def _ends(self, position: int) -> Whole:
        last = min(int(self.spans.stop[position]), self.spans.count - 1)
        return np.arange(position + 1, last + 1)

    def _is_kept(self, pairs: int) -> bool:
        return pairs <= _DIRECT_PAIRS and self._cached_pairs + pairs <= _CACHED_PAIRS

    def _keep(self, position: int, charged: bool) -> Whole:
        """The matrix of a position, for all that are alike."""
        first = self._known.setdefault(self._around(position), position)
        self._alike[position] = first
        matrix = self._matrices.get((first, charged))
        if matrix is None:
            begins, ends = self._begins(first), self._ends(first)
            matrix = self._waits(first, begins[:, None], ends[None, :], charged)
            self._matrices[first, charged] = matrix
            self._cached_pairs += matrix.size
        return matrix

    def _around(self, position: int) -> bytes:
        """All that the stalls at a position depend on."""
        spans, begins, ends = self.spans, self._begins(position), self._ends(position)
        left, right = spans.base[begins] + position, spans.base[position] + ends
        return np.concatenate(
            [
                [len(begins)],
                spans.forward[position] - spans.forward[begins],
                spans.again[position] - spans.again[begins],
                spans.again[ends] - spans.again[position],
                spans.load[left],
                spans.load[right],
                spans.gradients[right],
            ]
        ).tobytes()

    def _waits(self, position: int, begins: Whole, ends: Whole, charged: bool) -> Whole:
        """Of spans (begin, position) and (position, end), element by element."""
        spans = self.spans
        left, right = spans.base[begins] + position, spans.base[position] + ends
        forward = spans.forward[position] - spans.forward[begins]
        waits = np.maximum(spans.load[right] - forward, 0)
        again = spans.again[position] - spans.again[begins]
        waits = waits + np.maximum(spans.gradients[right] - again, 0)
        if charged:
            later = spans.again[ends] - spans.again[position]
            waits = waits + np.maximum(spans.load[left] - later, 0)
        return np.asarray(waits << self.bits)

    def _least_by_halving(
        self, position: int, begins: Whole, prices: Whole, charged: bool
    ) -> Whole:
        """Begins descending: rows by ascending length. Every `stride`-th row is solved, then those
        halfway between, each between its neighbours' best columns."""
        count, stride = len(begins), 1 << max(0, (len(begins) - 1).bit_length() - 3)
        least, place = np.empty(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        ends, known = self._ends(position), np.arange(0, count, stride)
        total = self._waits(position, begins[known, None], ends[None, :], charged) + prices
        place[known] = total.argmin(axis=1)
        least[known] = total[np.arange(len(known)), place[known]]
        while stride > 1:
            stride //= 2
            fresh = np.arange(stride, count, 2 * stride)
            after = fresh + stride
            low = place[fresh - stride]
            high = np.where(after < count, place[np.minimum(after, count - 1)], len(ends) - 1)
            which, column = _ragged(low, high)
            stalls = self._waits(position, begins[fresh[which]], ends[column], charged)
            least[fresh], place[fresh] = _row_minima(which, column, stalls + prices[column])
        return least


def _ragged(low: Whole, high: Whole) -> tuple[Whole, Whole]:
    """Row and column of every element of rows that reach from `low` to `high`, both included."""
    widths = high - low + 1
    starts = np.cumsum(widths) - widths
    which = np.repeat(np.arange(len(low)), widths)
    return which, np.arange(len(which)) - starts[which] + low[which]


def _row_minima(which: Whole, column: Whole, total: Whole) -> tuple[Whole, Whole]:
    """Per row the least element and the first column that has it."""
    starts = np.flatnonzero(np.diff(which, prepend=-1))
    least = np.minimum.reduceat(total, starts)
    hits = np.flatnonzero(total == least[which])
    firsts = hits[np.searchsorted(which[hits], np.arange(len(starts)))]
    return least, column[firsts]
