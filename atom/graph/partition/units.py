"""The least that partitions keep between sub-models, whatever they cost."""

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.spans import Spans, Whole
from atom.graph.partition.sweep import INFINITE


def least_units(spans: Spans, allowed: NDArray[np.bool_] | None) -> Whole:
    """Per position the least units that allowed sub-models from there on keep; INFINITE: none."""
    least = np.full(spans.count + 1, INFINITE, dtype=np.int64)
    least[spans.count] = 0
    for begin in range(spans.count - 1, -1, -1):
        here = spans.beginning_at(begin)
        total = spans.out_units[here] + least[begin + 1 : int(spans.stop[begin]) + 1]
        if allowed is not None:
            total = np.where(allowed[here], total, INFINITE)
        least[begin] = min(int(total.min()), INFINITE)
    return least


def least_units_plan(
    spans: Spans, allowed: NDArray[np.bool_] | None, least: Whole
) -> tuple[int, ...]:
    """Positions of a partition that keeps `least[0]` units."""
    positions, begin = [], 0
    while begin < spans.count:
        here = spans.beginning_at(begin)
        total = spans.out_units[here] + least[begin + 1 : int(spans.stop[begin]) + 1]
        if allowed is not None:
            total = np.where(allowed[here], total, INFINITE)
        begin += 1 + int(total.argmin())
        positions.append(begin)
    return tuple(positions)


def least_units_within(spans: Spans, rank: Whole, limits: int) -> Whole:
    """As `least_units`, one column for every limit k < `limits`: with spans of `rank` <= k."""
    least = np.full((spans.count + 1, limits), INFINITE, dtype=np.int64)
    least[spans.count] = 0
    every = np.arange(limits)
    for begin in range(spans.count - 1, -1, -1):
        here = spans.beginning_at(begin)
        total = spans.out_units[here, None] + least[begin + 1 : int(spans.stop[begin]) + 1]
        total = np.where(rank[here, None] <= every, total, INFINITE)
        least[begin] = np.minimum(total.min(axis=0), INFINITE)
    return least
