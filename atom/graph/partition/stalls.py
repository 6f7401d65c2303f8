"""What neighbouring sub-models wait for each other.

Of spans a = (i, j) and b = (j, m), in ticks:

    (load b - forward a)+ + (gradients b - again a)+ + (load a - again b)+,

the last term only if a needs a load in the backward. Each term is a convex function of a sum of
something that only grows with a's length and something that only falls with b's (or the other way
round): the matrix over (length of a, end of b) is Monge. So the best end of b never moves left as
a grows, and with many spans the row minima are found by halving strides instead of by trying all
pairs.
"""

from dataclasses import dataclass, field

import numpy as np

from atom.graph.partition.spans import Spans, Whole

_CACHED_PAIRS = 6_000_000
_DIRECT_PAIRS = 1 << 14


@dataclass
class Stalls:
    """Stalls are given in prices: ticks · 2^bits."""

    spans: Spans
    bits: int
    slots: int
    _matrices: dict[tuple[int, bool], Whole] = field(default_factory=dict)
    _caching: bool = field(init=False)

    def __post_init__(self) -> None:
        spans = self.spans
        rows = np.arange(spans.count) - spans.first[:-1]
        pairs = int((rows * (spans.stop - np.arange(spans.count))).sum())
        self._caching = pairs <= _CACHED_PAIRS

    def columns(self, position: int) -> slice:
        """Indices of the spans that begin there and are not the last."""
        here = self.spans.beginning_at(position)
        return slice(here.start, here.stop - int(self.spans.stop[position] == self.spans.count))

    def before_turn(self, position: int) -> Whole:
        """Of every span ending there and the last sub-model beginning there."""
        turn = self.spans.base[position] + self.spans.count
        rows = self.spans.ending_at(position)
        return self._waits(rows, turn, charged=False)

    def row(self, position: int, begin: int, charged: bool) -> Whole:
        """Of span (begin, position) and every span beginning at the position."""
        columns = np.arange(*self.columns(position).indices(len(self.spans.elements)))
        return self._waits(self.spans.base[begin] + position, columns, charged)

    def between(self, left: int, right: int, charged: bool) -> int:
        """Of two spans, by index."""
        return int(self._waits(np.array(left), np.array(right), charged))

    def least(self, position: int, prices: Whole, charged: bool) -> Whole:
        """Per span ending there, ascending begins: the least of stall + price over the spans that
        begin there (`prices`, by ascending ends, without the last sub-model's)."""
        rows = self.spans.ending_at(position)
        if len(rows) * len(prices) <= _DIRECT_PAIRS or self._caching:
            matrix = self._matrix(position, rows, charged)
            return np.asarray((matrix + prices).min(axis=1))
        columns = np.arange(*self.columns(position).indices(len(self.spans.elements)))
        return self._least_by_halving(rows[::-1], columns, prices, charged)[::-1]

    def _matrix(self, position: int, rows: Whole, charged: bool) -> Whole:
        known = self._matrices.get((position, charged))
        if known is None:
            columns = np.arange(*self.columns(position).indices(len(self.spans.elements)))
            known = self._waits(rows[:, None], columns[None, :], charged)
            if self._caching:
                self._matrices[position, charged] = known
        return known

    def _waits(self, rows: Whole, columns: Whole, charged: bool) -> Whole:
        spans = self.spans
        waits = np.maximum(spans.load[columns] - spans.span_forward[rows], 0)
        waits = waits + np.maximum(spans.gradients[columns] - spans.span_again[rows], 0)
        if charged:
            waits = waits + np.maximum(spans.load[rows] - spans.span_again[columns], 0)
        return np.asarray(waits << self.bits)

    def _least_by_halving(self, rows: Whole, columns: Whole, prices: Whole, charged: bool) -> Whole:
        """Rows by ascending length. Every `stride`-th row is solved, then those halfway between,
        each between its neighbours' best columns."""
        count, stride = len(rows), 1 << max(0, (len(rows) - 1).bit_length() - 3)
        least, place = np.empty(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        known = np.arange(0, count, stride)
        total = self._waits(rows[known, None], columns[None, :], charged) + prices
        place[known] = total.argmin(axis=1)
        least[known] = total[np.arange(len(known)), place[known]]
        while stride > 1:
            stride //= 2
            fresh = np.arange(stride, count, 2 * stride)
            after = fresh + stride
            low = place[fresh - stride]
            high = np.where(after < count, place[np.minimum(after, count - 1)], len(columns) - 1)
            self._solve_between(rows, columns, prices, charged, fresh, low, high, least, place)
        return least

    def _solve_between(
        self,
        rows: Whole,
        columns: Whole,
        prices: Whole,
        charged: bool,
        fresh: Whole,
        low: Whole,
        high: Whole,
        least: Whole,
        place: Whole,
    ) -> None:
        widths = high - low + 1
        starts = np.concatenate([[0], np.cumsum(widths)[:-1]])
        which = np.repeat(np.arange(len(fresh)), widths)
        column = np.arange(len(which)) - starts[which] + low[which]
        total = self._waits(rows[fresh[which]], columns[column], charged) + prices[column]
        least[fresh] = np.minimum.reduceat(total, starts)
        hits = np.flatnonzero(total == least[fresh][which])
        firsts = hits[np.searchsorted(which[hits], np.arange(len(fresh)))]
        place[fresh] = column[firsts]
