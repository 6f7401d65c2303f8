"""What an onlooker has seen since it began to look: nobody on the DHT keeps older sights."""

import math
from collections.abc import Sequence
from itertools import pairwise

from atom.base.clock import Clock

MAX_POINTS = 10_000

Point = tuple[int, float]
"""(round, mean loss of that round), or (second, tokens per second)."""


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


class SpeedHistory:
    """The swarm's speed, one point a second at most; old ones get coarser, none are dropped."""

    def __init__(self, clock: Clock, max_points: int = MAX_POINTS) -> None:
        self._clock = clock
        self._max_points = max_points
        self._began = clock.now()
        self._points: list[Point] = []

    @property
    def points(self) -> tuple[Point, ...]:
        """(seconds since this began, tokens per second), seconds ascending."""
        return tuple(self._points)

    def add(self, tokens_per_s: float) -> None:
        """Takes what is seen now; nothing that is no number."""
        if not math.isfinite(tokens_per_s):
            return
        second = int(self._clock.now() - self._began)
        if self._points and self._points[-1][0] == second:
            self._points.pop()
        self._points.append((second, tokens_per_s))
        if len(self._points) > self._max_points:
            self._points = thinned(self._points, self._max_points // 2)


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
    places = sum(place for place, _ in points)
    return places // len(points), math.fsum(value for _, value in points) / len(points)
