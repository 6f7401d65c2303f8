"""Dynamic programming from right to left over spans: least price of everything from a span on.

A *price* is `ticks · 2^bits + weight · units`. With weight 1 it orders by time, then by cut bytes;
a larger weight trades the two (a Lagrange multiplier on what is kept between sub-models).

Let price_r(i, j) be the least price of sub-models that begin with span (i, j), compute and stalls
from there on, when r more sub-models follow. Stalls concern neighbours only, so

    price_r(i, j) = own(i, j) + min over m of stall((i, j), (j, m)) + price_{r-1}(j, m).

How many follow matters only while the last `slots` sub-models need no load in the backward: classes
1 … slots-2 are exact, the last class holds slots-1 and more.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import Spans, Whole
from atom.graph.partition.stalls import Stalls

INFINITE = 1 << 61
"""Above every price; sums of it with a price do not overflow."""


@dataclass(frozen=True)
class Plan:
    """Positions at which sub-models end, and what they ask for."""

    positions: tuple[int, ...]
    price: int
    """With the weight of the sweep that found it."""
    ticks: int
    units: int
    elements: int
    """Of the largest sub-model."""
    activation_bytes: int

    def need_bytes(self, figures: Figures) -> int:
        """Slots, activations and what is kept between sub-models."""
        slots = figures.held_bytes * self.elements
        return slots + self.activation_bytes + figures.boundary_bytes * self.units


@dataclass(frozen=True)
class Sweep:
    """All prices, for one weight and one choice of allowed spans."""

    spans: Spans
    stalls: Stalls
    weight: int
    allowed: NDArray[np.bool_] | None
    """None: all."""
    prices: list[Whole] = field(init=False)
    """Per class 1 … slots-1 (at index class-1)."""

    def __post_init__(self) -> None:
        spans = self.spans
        classes = self.stalls.slots - 1
        # Each price begins as the span's own; what follows it is added when its end is met.
        own = (spans.compute << self.stalls.bits) + self.weight * spans.out_units
        own[spans.ending_at(spans.count)] = INFINITE
        if self.allowed is not None:
            own[~self.allowed] = INFINITE
        object.__setattr__(self, "prices", [own, *(own.copy() for _ in range(classes - 1))])
        for position in range(spans.count - 1, 0, -1):
            self._price_spans_ending_at(position)

    def own(self, begin: int, end: int) -> int:
        """Of span (begin, end): computing forward, and again for the backward; kept units."""
        index = self.spans.base[begin] + end
        ticks, units = int(self.spans.compute[index]), int(self.spans.out_units[index])
        return (ticks << self.stalls.bits) + self.weight * units

    def _price_spans_ending_at(self, position: int) -> None:
        columns, last = self.stalls.columns[position], len(self.prices)
        found: list[Whole | None] = [None] * last
        found[0] = self._from_turn(position)
        if columns.stop > columns.start:
            for r in range(2, last + 1):
                before = self.prices[r - 2][columns]
                found[r - 1] = self.stalls.least(position, before, charged=False)
            more = self.stalls.least(position, self.prices[-1][columns], charged=True)
            known = found[-1]
            found[-1] = more if known is None else np.minimum(known, more)
        indices = self.spans.ending_at(position)
        for prices, least in zip(self.prices, found, strict=True):
            rest = INFINITE if least is None else least
            prices[indices] = np.minimum(prices[indices] + rest, INFINITE)

    def turn_price(self, position: int) -> int | None:
        """Of the last sub-model beginning there, or None if it is too large."""
        spans = self.spans
        if spans.stop[position] < spans.count:
            return None
        if self.allowed is not None and not self.allowed[spans.base[position] + spans.count]:
            return None
        return int(spans.again[-1] - spans.again[position]) << self.stalls.bits

    def _from_turn(self, position: int) -> Whole | None:
        price = self.turn_price(position)
        return None if price is None else self.stalls.before_turn(position) + price

    def first_prices(self) -> tuple[slice, Whole]:
        """The spans a partition can begin with, and what loading them and sending their gradients
        adds: nothing computes meanwhile."""
        first = self.spans.beginning_at(0)
        exposed = self.spans.load[first] + self.spans.gradients[first]
        return first, exposed << self.stalls.bits

    def best(self) -> Plan | None:
        """The cheapest partition into allowed spans."""
        first, exposed = self.first_prices()
        best, start = INFINITE, (0, 0)
        whole = self.turn_price(0)
        if whole is not None:
            best, start = whole + int(exposed[-1]), (0, self.spans.count)
        for r, prices in enumerate(self.prices, start=1):
            total = prices[first] + exposed
            place = int(total.argmin()) if len(total) else 0
            if len(total) and total[place] < best:
                best, start = int(total[place]), (r, place + 1)
        if best >= INFINITE:
            return None
        return self.plan(best, self._walk(*start))

    def plan(self, price: int, positions: tuple[int, ...]) -> Plan:
        pairs = zip((0, *positions[:-1]), positions, strict=True)
        indices = np.array([self.spans.base[i] + j for i, j in pairs], dtype=np.int64)
        units = int(self.spans.out_units[indices].sum())
        return Plan(
            positions=positions,
            price=price,
            ticks=(price - self.weight * units) >> self.stalls.bits,
            units=units,
            elements=int(self.spans.elements[indices].max()),
            activation_bytes=int(self.spans.activation_bytes[indices].max()),
        )

    def _walk(self, r: int, end: int) -> tuple[int, ...]:
        """Follows the prices from span (0, end) of class r; class 0 is the turn."""
        positions, begin = [end], 0
        while r > 0:
            index = int(self.spans.base[begin]) + end
            rest = int(self.prices[r - 1][index]) - self.own(begin, end)
            r, following = self._next(r, begin, end, rest)
            begin, end = end, following
            positions.append(end)
        return tuple(positions)

    def _next(self, r: int, begin: int, end: int, rest: int) -> tuple[int, int]:
        row = begin - int(self.spans.first[end])
        if r == 1:
            turn = self._from_turn(end)
            if turn is not None and turn[row] == rest:
                return 0, self.spans.count
        columns = self.stalls.columns[end]
        options = [(r - 1, False)] if r > 1 else []
        options += [(r, True)] if r == len(self.prices) else []
        for following, charged in options:
            total = self.stalls.row(end, begin, charged) + self.prices[following - 1][columns]
            place = int(total.argmin())
            if total[place] == rest:
                return following, end + 1 + place
        raise AssertionError("a price without a way to it")


def price_of(spans: Spans, stalls: Stalls, positions: tuple[int, ...]) -> int:
    """Of a whole partition, weight 1."""
    pairs = list(zip((0, *positions[:-1]), positions, strict=True))
    indices = [int(spans.base[i]) + j for i, j in pairs]
    turn, last = pairs[-1][0], len(pairs) - 1
    exposed = int(spans.load[indices[0]] + spans.gradients[indices[0]])
    price = (exposed + int(spans.again[-1] - spans.again[turn])) << stalls.bits
    for s, (begin, end) in enumerate(pairs[:-1]):
        compute = int(spans.forward[end] - spans.forward[begin])
        compute += int(spans.again[end] - spans.again[begin])
        price += (compute << stalls.bits) + int(spans.out_units[indices[s]])
        price += stalls.between(begin, end, positions[s + 1], s <= last - stalls.slots)
    return price


def bound_of(least: Whole, weight: int, room: Whole, bits: int) -> Whole:
    """A bound from below on the weight-1 price of whatever keeps at most `room` units and whose
    price at `weight` is at least `least`.

    Of ticks t and units u: t · 2^bits + weight · u ≥ least and u ≤ room give the least t; for that
    t, the first of them gives the least u. One tick more costs more than any u.
    """
    ticks = -((weight * room - least) >> bits)
    units = -(((ticks << bits) - least) // weight)
    return np.asarray((ticks << bits) + np.maximum(units, 0))
