"""The losses an onlooker has seen since it began to look: nobody on the DHT keeps older ones."""

import math
from collections.abc import Sequence
from itertools import pairwise

MAX_POINTS = 10_000

Point = tuple[int, float]
"""(round, mean loss of that round in nats per token)."""


class LossHistory:
    """One loss per round, rounds ascending; a chain that went back drops the rounds after it."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._points: list[Point] = []

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(self._points)

    def add(self, round_number: int, loss: float | None) -> None:
        """Takes what was seen; nothing for a round without a loss, or one that is no number."""
        if loss is None or not math.isfinite(loss):
            return
        while self._points and self._points[-1][0] >= round_number:
            self._points.pop()
        self._points.append((round_number, loss))
        del self._points[: -self._max_points]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points: means of neighbours, the first and the last kept as they are."""
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    groups = max(1, most - 2)
    bounds = [len(inner) * index // groups for index in range(groups + 1)]
    means = [_mean(inner[a:b]) for a, b in pairwise(bounds) if a < b]
    return [points[0], *means, points[-1]]


def _mean(points: Sequence[Point]) -> Point:
    rounds = sum(round_number for round_number, _ in points)
    return rounds // len(points), math.fsum(loss for _, loss in points) / len(points)
