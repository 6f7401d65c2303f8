"""The fast solver: the optimum of Algorithm 1 by dynamic programming, branching and bounding.

A sweep (`sweep.py`) finds the best partition into spans that fit one by one. What it cannot see is
that slots are as large as the *largest* sub-model, that activations take what the *hungriest* one
needs, and that boundary values take what is left: a plan may break the sum

    held · max P + max A + boundary · Σ out ≤ budget

although each of its spans fits. Then the problem is divided over the values that max P and max A
can take: a *box* says that they lie in [low, high]. Spans above high are forbidden, the lows are
charged to the budget, and both tighten until the sweep's plan fits, or is bounded away, or P and A
are settled and only the boundary sum binds; `labels.py` then decides.

With n positions and at most w of them in a span, a sweep takes O(n·w²) for short spans and
O(n·w·log w) for long ones, and a plan of one sweep is the usual case. Boxes: at most as many as
pairs of distinct (P, A), each halving a range; in practice tens. The boundary sum makes the problem
a knapsack, so its last step is polynomial only in the number of distinct (seconds, bytes) sums.
Therefore effort is limited, by a count and not by a clock (every peer finds the same plan): what is
found when it is spent comes with a proven distance from the optimum.
"""

import heapq
from dataclasses import dataclass
from itertools import count as counter

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.figures import Figures
from atom.graph.partition.labels import LabelSearch
from atom.graph.partition.spans import Spans, spans_of
from atom.graph.partition.stalls import Stalls
from atom.graph.partition.sweep import (
    INFINITE,
    Plan,
    Sweep,
    bound_of,
    least_units,
    least_units_plan,
    price_of,
)

_MOST_PRICE = 1 << 59
_MULTIPLIERS = 8
_FEW_LABELS = 200
_LABEL_WORK = 600
_POSITION_WORK = 10

STANDARD_EFFORT = 2_500_000
"""Spans priced, a following-up of a label counting 600: about a second. Chains that an exhaustive
search could do never come near it."""


@dataclass(frozen=True)
class Found:
    positions: tuple[int, ...]
    gap_ticks: int
    """Its time is at most so far above the least possible; 0: none is faster."""


def search(figures: Figures, effort: int | None = STANDARD_EFFORT) -> Found | None:
    """Positions at which the sub-models of a best partition end, or None if none fits.

    `effort`: when so much is spent, the best partition found is good enough; None: never.
    """
    spans = spans_of(figures)
    if spans is None:
        return None
    stalls = Stalls(spans, figures.cut_bits, figures.slots)
    plan = Sweep(spans, stalls, 1, None).best()
    if plan is None or _need_bytes(figures, plan) <= figures.budget_bytes:
        return Found(plan.positions, 0) if plan else None
    return _Branching(figures, spans, stalls, effort).run()


def _need_bytes(figures: Figures, plan: Plan) -> int:
    return (
        figures.held_bytes * plan.elements
        + plan.activation_bytes
        + figures.boundary_bytes * plan.units
    )


@dataclass(frozen=True)
class Box:
    """Ranges of max P and max A, as ranks among the values that spans have."""

    low_elements: int
    high_elements: int
    low_activation: int
    high_activation: int

    def split(self, elements: int, activation: int, by_elements: bool) -> "tuple[Box, Box]":
        """Halves the part of a range that lies between its low and a plan's rank."""
        if by_elements:
            middle = _between(self.low_elements, elements)
            below = Box(self.low_elements, middle, self.low_activation, self.high_activation)
            above = Box(middle + 1, self.high_elements, self.low_activation, self.high_activation)
            return below, above
        middle = _between(self.low_activation, activation)
        below = Box(self.low_elements, self.high_elements, self.low_activation, middle)
        above = Box(self.low_elements, self.high_elements, middle + 1, self.high_activation)
        return below, above


def _between(low: int, rank: int) -> int:
    """Nearer to the plan: it tends to be as large as it should."""
    return low + 7 * (rank - 1 - low) // 8


class Ranks:
    """The distinct values of P and of A among spans, ascending."""

    def __init__(self, spans: Spans) -> None:
        self.elements = np.unique(spans.elements)
        self.activation_bytes = np.unique(spans.activation_bytes)
        alone = [spans.beginning_at(begin).start for begin in range(spans.count)]
        self.root = Box(
            self.rank_elements(int(spans.elements[alone].max())),
            len(self.elements) - 1,
            self.rank_activation(int(spans.activation_bytes[alone].max())),
            len(self.activation_bytes) - 1,
        )

    def rank_elements(self, elements: int) -> int:
        return int(np.searchsorted(self.elements, elements))

    def rank_activation(self, activation_bytes: int) -> int:
        return int(np.searchsorted(self.activation_bytes, activation_bytes))

    def lows(self, box: Box) -> tuple[int, int]:
        """Elements and activation bytes: the least that max P and max A are."""
        elements = int(self.elements[box.low_elements])
        return elements, int(self.activation_bytes[box.low_activation])

    def lows_bytes(self, figures: Figures, box: Box) -> int:
        """What slots and activations take at least."""
        elements, activation_bytes = self.lows(box)
        return figures.held_bytes * elements + activation_bytes

    def allowed(self, spans: Spans, box: Box) -> NDArray[np.bool_]:
        return np.asarray(
            (spans.elements <= self.elements[box.high_elements])
            & (spans.activation_bytes <= self.activation_bytes[box.high_activation])
        )

    def children(
        self, figures: Figures, box: Box, elements: int, activation_bytes: int
    ) -> tuple[Box, Box] | None:
        """Parts of a box, split where a plan of these extents lies furthest above its lows; None
        if it does not."""
        p, a = self.rank_elements(elements), self.rank_activation(activation_bytes)
        slots = figures.held_bytes * (elements - int(self.elements[box.low_elements]))
        activation = activation_bytes - int(self.activation_bytes[box.low_activation])
        if slots <= 0 and activation <= 0:
            return None
        return box.split(p, a, by_elements=slots >= activation)


class _Branching:
    """One search: boxes by their lower bounds, the best fitting plan so far."""

    def __init__(self, figures: Figures, spans: Spans, stalls: Stalls, effort: int | None) -> None:
        self._figures, self._spans, self._stalls = figures, spans, stalls
        self._ranks = Ranks(spans)
        self._best_price = INFINITE
        self._best: tuple[int, ...] | None = None
        self._weight = 1
        self._effort = effort
        self._sweep_work = len(spans.elements) + _POSITION_WORK * spans.count
        self._open_bound = INFINITE
        """Of boxes whose search was stopped for want of effort."""
        self.boxes = self.sweeps = self.labels = 0

    def run(self) -> Found | None:
        order = counter()
        queue = [(0, next(order), self._ranks.root)]
        while queue and queue[0][0] < self._best_price and not self._is_spent():
            bound, _, box = heapq.heappop(queue)
            self.boxes += 1
            for lower, part in self._explore(box):
                heapq.heappush(queue, (max(bound, lower), next(order), part))
        if self._best is None:
            return None
        bound = min(self._open_bound, queue[0][0] if queue else INFINITE, self._best_price)
        bits = self._figures.cut_bits
        return Found(self._best, (self._best_price >> bits) - (bound >> bits))

    def _is_spent(self) -> bool:
        """Never before there is something to show: whether anything fits is always settled."""
        return self._best is not None and self._effort is not None and self._work() > self._effort

    def _work(self) -> int:
        return self.sweeps * self._sweep_work + self.labels * _LABEL_WORK

    def _explore(self, box: Box) -> list[tuple[int, Box]]:
        """Parts of a box that are still to be searched, with lower bounds."""
        figures, ranks = self._figures, self._ranks
        room = figures.budget_bytes - ranks.lows_bytes(figures, box)
        room = min(room // figures.boundary_bytes, 1 << figures.cut_bits)
        allowed = ranks.allowed(self._spans, box)
        least = least_units(self._spans, allowed)
        if least[0] > room:
            return []
        allowed &= self._fits_beside(int(least[0]), box)
        least = least_units(self._spans, allowed)
        if least[0] > room:
            return []
        plain = self._sweep(1, allowed)
        plan = plain.best()
        if plan is None or plan.price >= self._best_price:
            return []
        if self._offer(plan):
            return []
        if plan.units <= room:
            return self._parts(box, plan, plan.price)
        frugal = self._plan(plain, least_units_plan(self._spans, allowed, least))
        self._offer(frugal)
        weighted, bound, frugal = self._multiplier(allowed, plan, frugal, room)
        bound = max(bound, plan.price)
        if bound >= self._best_price:
            return []
        parts = self._parts(box, frugal, bound) or self._parts(box, plan, bound)
        search = LabelSearch(figures, plain, weighted, least, ranks.lows(box))
        if self._decide(search, plain, _FEW_LABELS if parts else self._most_labels()):
            return []
        if not parts:
            self._open_bound = min(self._open_bound, bound)
        return parts

    def _most_labels(self) -> int | None:
        """That the effort left allows."""
        if self._effort is None or self._best is None:
            return None
        return max(0, self._effort - self._work()) // _LABEL_WORK

    def _parts(self, box: Box, plan: Plan, bound: int) -> list[tuple[int, Box]]:
        children = self._ranks.children(self._figures, box, plan.elements, plan.activation_bytes)
        return [(bound, child) for child in children] if children else []

    def _decide(self, search: LabelSearch, plain: Sweep, most_labels: int | None) -> bool:
        """Searches a box to the end, if that takes no more than so many labels; whether it did."""
        positions = search.run(self._best_price, most_labels)
        self.labels += search.expanded
        if positions is not None:
            self._offer(self._plan(plain, positions))
        return not search.stopped

    def _multiplier(
        self, allowed: NDArray[np.bool_], costly: Plan, frugal: Plan, room: int
    ) -> tuple[Sweep, int, Plan]:
        """The price of a kept unit that bounds the box best: the sweep, the bound, and the
        cheapest plan met that keeps no more than `room`."""
        bound, weighted = 0, None
        for attempt in range(_MULTIPLIERS):
            more = (frugal.ticks - costly.ticks) << self._figures.cut_bits
            weight = max(1, more // (costly.units - frugal.units))
            weight = min(weight, _MOST_PRICE >> self._figures.cut_bits)
            if attempt == 0 and self._weight > 1:
                weight = self._weight
            sweep = self._sweep(weight, allowed)
            plan = sweep.best()
            assert plan is not None
            self._offer(plan)
            bits = self._figures.cut_bits
            lower = int(bound_of(np.array(plan.price), weight, np.array(room), bits))
            if weighted is None or lower > bound:
                bound, weighted = lower, sweep
            frugal_price = (frugal.ticks << self._figures.cut_bits) + weight * frugal.units
            costly_price = (costly.ticks << self._figures.cut_bits) + weight * costly.units
            if bound >= self._best_price:
                break
            if attempt > 0 and plan.price >= min(frugal_price, costly_price):
                break
            if plan.units <= room:
                frugal = plan
            else:
                costly = plan
        assert weighted is not None
        self._weight = weighted.weight
        return weighted, bound, frugal

    def _fits_beside(self, units: int, box: Box) -> NDArray[np.bool_]:
        """Spans that fit when so much is kept, and slots and activations are at the lows."""
        ranks, spans, figures = self._ranks, self._spans, self._figures
        elements = np.maximum(spans.elements, ranks.elements[box.low_elements])
        lowest = ranks.activation_bytes[box.low_activation]
        activation = np.maximum(spans.activation_bytes, lowest)
        need = figures.held_bytes * elements + activation + figures.boundary_bytes * units
        return np.asarray(need <= figures.budget_bytes)

    def _sweep(self, weight: int, allowed: NDArray[np.bool_]) -> Sweep:
        self.sweeps += 1
        return Sweep(self._spans, self._stalls, weight, allowed)

    def _plan(self, sweep: Sweep, positions: tuple[int, ...]) -> Plan:
        return sweep.plan(price_of(self._spans, self._stalls, positions), positions)

    def _offer(self, plan: Plan) -> bool:
        """Takes a plan that fits as the best, if it is. Whether it fits."""
        fits = _need_bytes(self._figures, plan) <= self._figures.budget_bytes
        price = (plan.ticks << self._figures.cut_bits) + plan.units
        if fits and price < self._best_price:
            self._best_price, self._best = price, plan.positions
        return fits
