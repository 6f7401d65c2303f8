"""The price of a kept unit that says most about the spans of a box.

Whatever a unit costs (a Lagrange multiplier), the cheapest partition at that price, less the price
of all the room there is, is a bound from below. As a function of the price the bound is concave; of
two partitions, one that keeps too much and one that keeps little enough, the price at which they
cost the same is the next to try, until a sweep finds nothing cheaper than these two.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atom.graph.partition.sweep import INFINITE, Plan, Sweep, bound_of

_MOST_PRICE = 1 << 59


def most_weight(bits: int) -> int:
    """At which all units together, `2^bits`, still have a price that sweeps can count with."""
    return _MOST_PRICE >> bits


@dataclass
class Multiplier:
    """One search for it. `room`: units that may be kept; `bits`: of a price's units."""

    room: int
    bits: int
    frugal: Plan
    """The cheapest met that keeps no more than the room."""
    costly: Plan | None = None
    """The thriftiest met that keeps more."""
    bound: int = 0
    """On the weight-1 price of all that keep no more than the room."""
    best: Sweep | None = None
    """That which gave the bound."""
    plain: Sweep | None = None
    """That of weight 1, if it was made."""
    is_frugal_swept: bool = False
    """Else it is only the thriftiest, and may be far too dear."""
    latest: Plan | None = None
    sweeps: int = 0
    is_done: bool = False
    """No other weight gives more."""
    is_plain_enough: bool = False
    """The room is no matter: the cheapest of all keeps little enough."""

    def next_weight(self, inherited: int) -> int:
        """To be swept next; `inherited`: a guess for the first."""
        if self.best is None:
            return inherited
        return 1 if self.costly is None else self._where_equal(self.costly)

    def guess(self) -> int:
        """For the first weight in a part of the box."""
        assert self.best is not None
        if self.is_done or self.costly is None or not self.is_frugal_swept:
            return self.best.weight
        return self._where_equal(self.costly)

    def learn(self, sweep: Sweep, plan: Plan) -> None:
        """What a sweep at the next weight found."""
        self.is_done = self._is_no_news(sweep.weight, plan)
        lower = plan.price if sweep.weight == 1 else self._lower(plan.price, sweep.weight)
        if self.best is None or lower > self.bound:
            self.bound, self.best = lower, sweep
        if sweep.weight == 1:
            self.plain = sweep
        if plan.units > self.room:
            self.costly = plan
        else:
            self.frugal, self.is_frugal_swept = plan, True
            self.is_plain_enough = sweep.weight == 1
            self.is_done |= self.is_plain_enough
        self.latest = plan
        self.sweeps += 1

    def met(self) -> Iterator[Plan]:
        """The last plan, and both ends."""
        yield from (plan for plan in (self.latest, self.frugal, self.costly) if plan is not None)

    def most(self) -> int:
        """What the bound can still become."""
        if self.is_done:
            return self.bound
        if self.costly is None:
            return INFINITE
        weight = self._where_equal(self.costly)
        return self._lower(self._priced(self.costly, weight), weight)

    def _lower(self, price: int, weight: int) -> int:
        return int(bound_of(np.array(price), weight, np.array(self.room), self.bits))

    def _is_no_news(self, weight: int, plan: Plan) -> bool:
        if self.costly is None:
            return False
        ends = self._priced(self.costly, weight), self._priced(self.frugal, weight)
        return plan.price >= min(ends)

    def _priced(self, plan: Plan, weight: int) -> int:
        return (plan.ticks << self.bits) + weight * plan.units

    def _where_equal(self, costly: Plan) -> int:
        more = (self.frugal.ticks - costly.ticks) << self.bits
        weight = max(1, more // (costly.units - self.frugal.units))
        return min(weight, most_weight(self.bits))
