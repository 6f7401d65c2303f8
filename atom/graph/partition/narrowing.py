"""Which part of a box can hold partitions at all: the cheap question before the dear ones.

A partition whose largest sub-model has more than `low` and at most `high` elements keeps no less
than the thriftiest partition into spans of at most `high`, and has no more room for that than
beside `low`. One pass over the spans answers this for several ranges at once.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.boxes import Box, Ranks
from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import Spans, Whole
from atom.graph.partition.units import least_units_within

_LIMITS = 16


class Narrowing:
    """For one problem. `passes` counts those over all spans."""

    def __init__(self, figures: Figures, spans: Spans, ranks: Ranks) -> None:
        self._figures, self._spans, self._ranks = figures, spans, ranks
        self.passes = 0

    def narrowed(self, box: Box) -> tuple[Box, Whole] | None:
        """Without what lies at the ranges' ends and holds no partition that fits, and the least
        units from every position on within that; None: nothing in it fits."""
        limits, least = self._by_elements(box)
        starts = [box.low_elements, *(limits[:-1] + 1)]
        kept = self._kept(least, [(start, box.low_activation) for start in starts])
        if not len(kept):
            return None
        low, high = int(starts[kept[0]]), int(limits[kept[-1]])
        box = replace(box, low_elements=low, high_elements=high)
        limits, least = self._by_activation(box)
        starts = [box.low_activation, *(limits[:-1] + 1)]
        kept = self._kept(least, [(box.low_elements, start) for start in starts])
        if not len(kept):
            return None
        low, high = int(starts[kept[0]]), int(limits[kept[-1]])
        return replace(box, low_activation=low, high_activation=high), least[:, kept[-1]]

    def _kept(self, least: Whole, lows: list[tuple[int, int]]) -> NDArray[np.intp]:
        """Ranges in which the thriftiest partition has room beside the lows."""
        rooms = [self._ranks.room_units(self._figures, int(p), int(a)) for p, a in lows]
        return np.flatnonzero(least[0] <= rooms)

    def _by_elements(self, box: Box) -> tuple[Whole, Whole]:
        """Limits on P, as ranks, the last one the box's; the least units beneath each, from every
        position on."""
        allowed = self._spans.activation_bytes <= self._ranks.activation_bytes[box.high_activation]
        limits = _spread(box.low_elements, box.high_elements)
        return limits, self._least(
            self._ranks.elements[limits], self._spans.elements, np.asarray(allowed)
        )

    def _by_activation(self, box: Box) -> tuple[Whole, Whole]:
        allowed = self._spans.elements <= self._ranks.elements[box.high_elements]
        limits = _spread(box.low_activation, box.high_activation)
        return limits, self._least(
            self._ranks.activation_bytes[limits],
            self._spans.activation_bytes,
            np.asarray(allowed),
        )

    def _least(self, limits: Whole, sizes: Whole, allowed: NDArray[np.bool_]) -> Whole:
        self.passes += 1
        rank = np.searchsorted(limits, sizes)
        return least_units_within(self._spans, np.where(allowed, rank, len(limits)), len(limits))


def _spread(low: int, high: int) -> Whole:
    """At most so many ranks, evenly between, `high` the last."""
    count = min(_LIMITS, high - low + 1)
    return high - (high - low + 1) * np.arange(count - 1, -1, -1) // count
