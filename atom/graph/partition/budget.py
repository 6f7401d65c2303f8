"""The least device memory for which any partition exists.

Among partitions into spans, minimise held · max P + max A + boundary · Σ out. For given limits on
P and A the least Σ out is a shortest path; boxes over (max P, max A) do the rest, as in
`dynamic.py`. Which spans are worth a look is not known beforehand, so the search widens: a
partition whose need is at most B has only spans that need at most B.
"""

import heapq
from dataclasses import replace
from itertools import count as counter

from atom.graph.partition.boxes import Box, Ranks
from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import Spans, spans_of
from atom.graph.partition.sweep import INFINITE
from atom.graph.partition.units import least_units, least_units_plan


def smallest_budget_bytes(figures: Figures) -> int:
    """What slots, activations and boundary values need at least."""
    lows = figures.held_bytes * max(sum(atom.parameters.values()) for atom in figures.atoms) + max(
        atom.working_bytes + atom.transient_bytes for atom in figures.atoms
    )
    tried = lows + 1
    while True:
        spans = spans_of(replace(figures, budget_bytes=tried))
        assert spans is not None, "every atom alone fits by construction"
        need = _least_need(figures, spans)
        if need <= tried:
            return need
        tried = min(2 * tried, need)


def _least_need(figures: Figures, spans: Spans) -> int:
    """Over partitions into these spans."""
    ranks, order, best = Ranks(spans), counter(), INFINITE
    queue: list[tuple[int, int, Box]] = [(0, next(order), ranks.root)]
    while queue:
        bound, _, box = heapq.heappop(queue)
        if bound >= best:
            break
        allowed = ranks.allowed(spans, box)
        least = least_units(spans, allowed)
        if least[0] >= INFINITE:
            continue
        boundary = figures.boundary_bytes * int(least[0])
        lower = max(bound, ranks.lows_bytes(figures, box) + boundary)
        if lower >= best:
            continue
        elements, activation = _extents(spans, least_units_plan(spans, allowed, least))
        best = min(best, figures.held_bytes * elements + activation + boundary)
        for part in ranks.children(figures, box, elements, activation) or ():
            heapq.heappush(queue, (lower, next(order), part))
    return best


def _extents(spans: Spans, positions: tuple[int, ...]) -> tuple[int, int]:
    """Largest P and largest A of a partition."""
    indices = [int(spans.base[i]) + j for i, j in zip((0, *positions[:-1]), positions, strict=True)]
    return int(spans.elements[indices].max()), int(spans.activation_bytes[indices].max())
