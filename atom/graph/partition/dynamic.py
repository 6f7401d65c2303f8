"""The fast solver: the optimum of Algorithm 1 by dynamic programming, branching and bounding.

A sweep (`sweep.py`) finds the best partition into spans that fit one by one. What it cannot see is
that slots are as large as the *largest* sub-model, that activations take what the *hungriest* one
needs, and that boundary values take what is left: a plan may break the sum

    held · max P + max A + boundary · Σ out ≤ budget

although each of its spans fits. Then the problem is divided over the values that max P and max A
can take (`branching.py`): a *box* says that they lie in [low, high]. Spans above high are
forbidden, the lows are charged to the budget, and what is left is room for boundary values.

1. Something to show. Two or three sweeps with a modest price on what is kept, each forbidding the
   spans that the last one's plan had no memory for, end in a plan that fits and is near the best.
2. Narrowing. Which parts of a box have room for even the thriftiest partition is a question of one
   cheap pass (`narrowing.py`); the rest of the box is dropped.
3. Bounding. One sweep that ignores the room; if its plan keeps too much, sweeps in which kept units
   have a price, the multiplier, until the bound says that nothing better than the best is there,
   or that a smaller box must say it (`multiplier.py`).
4. Halving, at the extents of the plan that was met; or, if it is not above the lows and only the
   boundary sum binds, a search over partial cuts (`labels.py`).

With n positions and at most w of them in a span, a sweep takes O(n·w²) for short spans and
O(n·w·log w) for long ones, and a plan of one sweep is the usual case. Boxes: at most as many as
pairs of distinct (P, A), which the kinds of layers decide and not their number; in practice tens.
The boundary sum makes the problem a knapsack, so its last step is polynomial only in the number of
distinct (seconds, bytes) sums. Therefore effort is limited, by a count and not by a clock (every
peer finds the same plan): what is found when it is spent comes with a proven distance from the
optimum. A sweep is a step of that count, so what is spent grows as a sweep does with the model.
"""

from dataclasses import dataclass

from atom.graph.partition.branching import Branching
from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import spans_of
from atom.graph.partition.stalls import Stalls
from atom.graph.partition.sweep import Sweep

STANDARD_EFFORT = 10_000_000
"""Spans priced, a following-up of a label counting 1,200: about a second, and in proportion for
chains of which one sweep is a good part of that. Chains that an exhaustive search could do never
come near it."""


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
    plain = Sweep(spans, Stalls(spans, figures.cut_bits, figures.slots), 1, None)
    plan = plain.best()
    if plan is None:
        return None
    if plan.need_bytes(figures) <= figures.budget_bytes:
        return Found(plan.positions, 0)
    branching = Branching(figures, plain, plan.price, effort)
    branching.run()
    if branching.best is None:
        return None
    bound, bits = min(branching.open_bound, branching.best_price), figures.cut_bits
    return Found(branching.best, (branching.best_price >> bits) - (bound >> bits))
