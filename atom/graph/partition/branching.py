"""Branch and bound over max P and max A, for when the sum of three needs more than the budget."""

import heapq
from itertools import count as counter

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.boxes import Box, Ranks
from atom.graph.partition.figures import Figures
from atom.graph.partition.labels import LabelSearch
from atom.graph.partition.multiplier import Multiplier, most_weight
from atom.graph.partition.narrowing import Narrowing
from atom.graph.partition.spans import Whole
from atom.graph.partition.sweep import INFINITE, Plan, Sweep, price_of
from atom.graph.partition.units import least_units, least_units_plan

_SHARES = (1000, 100, 10)
"""First guesses of the multiplier: all room would cost such a share of the pass."""
_SHRINKINGS = 4
_MULTIPLIERS = 8
_FEW_LABELS = 50
_LABEL_WORK = 1200
_POSITION_WORK = 10
_PAIRS_AT_ONCE = 64
"""Stalls of neighbours that are compared while one span is priced."""
_MUCH_WORK = 300_000
"""For one sweep; from there on the effort grows with the chain."""

Part = tuple[int, Box, int]
"""A box still to be searched: a bound from below on its prices, and a multiplier to begin with."""


class Branching:
    """One search: boxes by their lower bounds, the best fitting plan so far."""

    def __init__(self, figures: Figures, plain: Sweep, at_least: int, effort: int | None) -> None:
        """`plain`: the sweep of weight 1 over all spans, `at_least` its best price."""
        self._figures, self._spans, self._plain = figures, plain.spans, plain
        self._ranks = Ranks(self._spans)
        self._narrowing = Narrowing(figures, self._spans, self._ranks)
        self._at_least = at_least
        self._sweep_work = len(self._spans.elements) + _POSITION_WORK * self._spans.count
        self._sweep_work += plain.stalls.pairs() // _PAIRS_AT_ONCE
        self._effort = None if effort is None else effort * max(1, self._sweep_work // _MUCH_WORK)
        self.best_price = INFINITE
        self.best: tuple[int, ...] | None = None
        self.open_bound = INFINITE
        """Of boxes whose search was stopped for want of effort."""
        self.boxes, self.sweeps, self.labels = 0, 1, 0

    def run(self) -> None:
        """Finds the `best` that fits, if anything does; nothing costs less than `open_bound` or
        the best itself."""
        root = self._ranks.root
        queue, order = [(self._at_least, 0, root, self._first_plan(root))], counter(1)
        while queue and queue[0][0] < self.best_price and not self._is_spent():
            bound, _, box, weight = heapq.heappop(queue)
            self.boxes += 1
            for lower, part, guess in self._explore(box, weight):
                heapq.heappush(queue, (max(bound, lower), next(order), part, guess))
        if queue:
            self.open_bound = min(self.open_bound, queue[0][0])

    def _is_spent(self) -> bool:
        """Never before there is something to show: whether anything fits is always settled."""
        return self.best is not None and self._effort is not None and self._work() > self._effort

    def _work(self) -> int:
        passes = self.sweeps + self._narrowing.passes
        return passes * self._sweep_work + self.labels * _LABEL_WORK

    def _first_plan(self, root: Box) -> int:
        """Something to show, early, and the multiplier that found it."""
        room = self._room(root.low_elements, root.low_activation)
        for share in _SHARES if room > 0 else ():
            weight = max(1, self._at_least // (room * share))
            weight = min(weight, most_weight(self._figures.cut_bits))
            self._shrink(weight)
            if self.best is not None:
                return weight
        return 1

    def _shrink(self, weight: int) -> None:
        """Until a plan fits, forbids spans that need more than what the last one kept leaves,
        and as much less as the last one needed too much."""
        figures, spans = self._figures, self._spans
        alone, left = spans.need_bytes(figures), figures.budget_bytes
        for _ in range(_SHRINKINGS):
            plan = self._sweep(weight, alone <= left).best()
            if plan is None or self._offer(plan):
                return
            kept = figures.boundary_bytes * plan.units
            excess = plan.need_bytes(figures) - figures.budget_bytes
            left = min(left - excess, figures.budget_bytes - kept)

    def _explore(self, box: Box, weight: int) -> list[Part]:
        """Parts of a box that are still to be searched."""
        narrow = self._narrowing.narrowed(box)
        if narrow is None:
            return []
        box, least = narrow
        room = self._room(box.low_elements, box.low_activation)
        allowed = self._ranks.allowed(self._spans, box)
        beside = self._fits_beside(int(least[0]), box)
        if not beside[allowed].all():
            allowed &= beside
            least = least_units(self._spans, allowed)
            if least[0] > room:
                return []
        found = self._multiplier(allowed, least, room)
        self._raise_bound(found, allowed, weight, thorough=False)
        parts = self._parts(box, found)
        if not parts:
            self._raise_bound(found, allowed, weight, thorough=True)
        if found.bound >= self.best_price or found.is_plain_enough:
            return [part for part in parts if part[0] < self.best_price]
        return self._search_labels(box, found, least, parts)

    def _room(self, rank_elements: int, rank_activation: int) -> int:
        return self._ranks.room_units(self._figures, rank_elements, rank_activation)

    def _multiplier(self, allowed: NDArray[np.bool_], least: Whole, room: int) -> Multiplier:
        frugal = self._plan(least_units_plan(self._spans, allowed, least))
        self._offer(frugal)
        return Multiplier(room, self._figures.cut_bits, frugal)

    def _raise_bound(
        self, found: Multiplier, allowed: NDArray[np.bool_], weight: int, thorough: bool
    ) -> None:
        """Tries multipliers, `weight` first: `thorough`ly, or only while they may yet show that
        nothing here is better than the best."""
        while not found.is_done and found.sweeps < _MULTIPLIERS:
            sweep = self._sweep(found.next_weight(weight), allowed)
            plan = sweep.best()
            assert plan is not None, "the frugal plan is allowed"
            self._offer(plan)
            found.learn(sweep, plan)
            hopeless = not thorough and found.most() < self.best_price
            if found.bound >= self.best_price or hopeless or self._is_spent():
                break

    def _parts(self, box: Box, found: Multiplier) -> list[Part]:
        """Halves of the box, if a plan that was met lies above its lows."""
        for plan in found.met():
            extents = plan.elements, plan.activation_bytes
            children = self._ranks.children(self._figures, box, *extents)
            if children:
                return [(found.bound, child, found.guess()) for child in children]
        return []

    def _search_labels(
        self, box: Box, found: Multiplier, least: Whole, parts: list[Part]
    ) -> list[Part]:
        """Searches a box to the end, if that takes no more than a few labels, or it has no parts;
        else its parts remain."""
        assert found.best is not None
        lows = self._ranks.lows(box)
        plain = found.plain or self._plain
        search = LabelSearch(self._figures, plain, found.best, least, lows)
        positions = search.run(self.best_price, _FEW_LABELS if parts else self._most_labels())
        self.labels += search.expanded
        if positions is not None:
            self._offer(self._plan(positions))
        if not search.stopped:
            return []
        if not parts:
            self.open_bound = min(self.open_bound, found.bound)
        return parts

    def _most_labels(self) -> int | None:
        """That the effort left allows."""
        if self._effort is None or self.best is None:
            return None
        return max(0, self._effort - self._work()) // _LABEL_WORK

    def _fits_beside(self, units: int, box: Box) -> NDArray[np.bool_]:
        """Spans that fit when so much is kept, and slots and activations are at the lows."""
        lows, spans, figures = self._ranks.lows(box), self._spans, self._figures
        elements = np.maximum(spans.elements, lows[0])
        activation = np.maximum(spans.activation_bytes, lows[1])
        need = figures.held_bytes * elements + activation + figures.boundary_bytes * units
        return np.asarray(need <= figures.budget_bytes)

    def _sweep(self, weight: int, allowed: NDArray[np.bool_]) -> Sweep:
        self.sweeps += 1
        return Sweep(self._spans, self._plain.stalls, weight, allowed)

    def _plan(self, positions: tuple[int, ...]) -> Plan:
        price = price_of(self._spans, self._plain.stalls, positions)
        return self._plain.plan(price, positions)

    def _offer(self, plan: Plan) -> bool:
        """Takes a plan that fits as the best, if it is. Whether it fits."""
        price = (plan.ticks << self._figures.cut_bits) + plan.units
        fits = plan.need_bytes(self._figures) <= self._figures.budget_bytes
        if fits and price < self.best_price:
            self.best_price, self.best = price, plan.positions
        return fits
