"""Best-first search for when the memory left for boundary values decides.

A dynamic programme over spans cannot know how much its left side keeps. So partitions are built
from the left as labels (span, price so far, units kept, largest sub-model), cheapest possible total
first, where what a label can still cost is bounded from below twice: by a sweep's price to the end,
and by that of a sweep in which kept units have a price too. The first complete partition that is
drawn is a best one. Labels that are nowhere better than another of the same span are dropped.
Exact; the number of labels has no polynomial bound (the problem has knapsack inside), but is small
where layers resemble each other, because most labels are equal.
"""

import heapq
from dataclasses import dataclass
from itertools import count as counter

import numpy as np

from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import Whole
from atom.graph.partition.sweep import INFINITE, Sweep, bound_of


@dataclass(frozen=True)
class Label:
    """Sub-models before span (begin, end), which is chosen too. `follow`: the class of the span;
    0: it is the last sub-model."""

    follow: int
    begin: int
    end: int
    price: int
    """Of what is before the span, weight 1, with the stall between."""
    units: int
    """Kept by what is before the span."""
    elements: int
    """Largest so far, with the span."""
    activation_bytes: int
    before: "Label | None"

    def positions(self) -> tuple[int, ...]:
        label: Label | None = self
        positions = []
        while label is not None:
            positions.append(label.end)
            label = label.before
        return tuple(reversed(positions))

    def no_worse_than(self, other: "Label") -> bool:
        return (
            self.price <= other.price
            and self.units <= other.units
            and self.elements <= other.elements
            and self.activation_bytes <= other.activation_bytes
        )


class LabelSearch:
    """One search. `weighted` has any weight and allows the spans that are allowed; `plain` has
    weight 1 and allows no fewer. `least_units`: per position, what the rest keeps at least.
    `lows`: max P and max A are at least so large (plans with smaller ones are judged as if they had
    these)."""

    def __init__(
        self,
        figures: Figures,
        plain: Sweep,
        weighted: Sweep,
        least_units: Whole,
        lows: tuple[int, int],
    ) -> None:
        self._figures = figures
        self._plain = plain
        self._weighted = weighted
        self._least_units = least_units
        self._lows = lows
        self._queue: list[tuple[int, int, int, Label]] = []
        self._order = counter()
        self._closed: dict[tuple[int, int, int], list[Label]] = {}
        self.expanded = 0
        self.stopped = False

    def run(self, below: int, most_labels: int | None = None) -> tuple[int, ...] | None:
        """Positions of a best partition that costs less than `below`; None if there is none, or
        (then it is `stopped`) if more than `most_labels` would have to be followed up."""
        self._begin(below)
        while self._queue:
            _, _, _, label = heapq.heappop(self._queue)
            if label.follow == 0:
                return label.positions()
            if self._is_new(label):
                if self.expanded == most_labels:
                    self.stopped = True
                    return None
                self.expanded += 1
                self._expand(label, below)
        return None

    def _is_new(self, label: Label) -> bool:
        rivals = self._closed.setdefault((label.follow, label.begin, label.end), [])
        if any(rival.no_worse_than(label) for rival in rivals):
            return False
        rivals.append(label)
        return True

    def _begin(self, below: int) -> None:
        first, exposed = self._plain.first_prices()
        indices = np.arange(first.start, first.stop)
        for r in range(1, len(self._plain.prices) + 1):
            self._push(r, 0, indices, exposed, None, below)
        whole = self._weighted.turn_price(0)
        if whole is not None:
            self._push(0, 0, indices[-1:], exposed[-1:], None, below)

    def _expand(self, label: Label, below: int) -> None:
        plain, spans = self._plain, self._plain.spans
        own = plain.own(label.begin, label.end)
        so_far, row = label.price + own, label.begin - int(spans.first[label.end])
        if label.follow == 1 and self._weighted.turn_price(label.end) is not None:
            stall = int(plain.stalls.before_turn(label.end)[row])
            turn = np.array([spans.base[label.end] + spans.count])
            self._push(0, label.end, turn, np.array([so_far + stall]), label, below)
        columns = plain.stalls.columns[label.end]
        if columns.stop == columns.start:
            return
        indices = np.arange(columns.start, columns.stop)
        if label.follow > 1:
            waits = plain.stalls.row(label.end, label.begin, charged=False)
            self._push(label.follow - 1, label.end, indices, so_far + waits, label, below)
        if label.follow == len(plain.prices):
            waits = plain.stalls.row(label.end, label.begin, charged=True)
            self._push(label.follow, label.end, indices, so_far + waits, label, below)

    def _push(
        self,
        follow: int,
        begin: int,
        indices: Whole,
        prices: Whole,
        before: Label | None,
        below: int,
    ) -> None:
        """The spans that can still become a partition that fits and costs less than `below`."""
        figures, spans = self._figures, self._plain.spans
        units = 0
        elements = np.maximum(spans.elements[indices], self._lows[0])
        activation = np.maximum(spans.activation_bytes[indices], self._lows[1])
        if before is not None:
            units = before.units
            units += int(spans.out_units[spans.base[before.begin] + before.end])
            elements = np.maximum(elements, before.elements)
            activation = np.maximum(activation, before.activation_bytes)
        ends = begin + 1 + indices - spans.beginning_at(begin).start
        room = figures.budget_bytes - figures.held_bytes * elements - activation
        room = np.minimum(room // figures.boundary_bytes, 1 << figures.cut_bits)
        rest = spans.out_units[indices] + self._least_units[ends]
        bound = np.maximum(
            self._to_go(self._plain, follow, begin, indices) + prices,
            self._weighted_bound(follow, begin, indices, prices, units, room),
        )
        for place in np.flatnonzero((units + rest <= room) & (bound < below)):
            label = Label(
                follow,
                begin,
                int(ends[place]),
                int(prices[place]),
                units,
                int(elements[place]),
                int(activation[place]),
                before,
            )
            entry = (int(bound[place]), -label.end, next(self._order), label)
            heapq.heappush(self._queue, entry)

    def _weighted_bound(
        self, follow: int, begin: int, indices: Whole, prices: Whole, units: int, room: Whole
    ) -> Whole:
        """On the whole price: what is before has `prices` and keeps `units` of the `room`."""
        weight = self._weighted.weight
        least = self._to_go(self._weighted, follow, begin, indices)
        whole = least + prices + (weight - 1) * units
        return bound_of(whole, weight, room, self._figures.cut_bits)

    def _to_go(self, sweep: Sweep, follow: int, begin: int, indices: Whole) -> Whole:
        if follow > 0:
            return sweep.prices[follow - 1][indices]
        price = sweep.turn_price(begin)
        return np.full(len(indices), INFINITE if price is None else price)
