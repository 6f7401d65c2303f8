"""A loss curve as SVG: pure, one picture from one list of points. Colours come from the style."""

import math
from collections.abc import Callable, Sequence
from html import escape

from atom.dashboard.history import Point, thinned

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 22, 12, 26
_MOST_POINTS = 400
_GRID_LINES = 4
_LABEL_CHARACTERS = 7
"""Width of a digit in viewBox units, about."""


def loss_chart(points: Sequence[Point], title: str = "loss by round") -> str:
    """An `<svg>` of loss (nats per token) over rounds. `points` has at least two rounds."""
    drawn = thinned(points, _MOST_POINTS)
    first, last = drawn[0][0], drawn[-1][0]
    ticks = nice_ticks(min(y for _, y in drawn), max(y for _, y in drawn), _GRID_LINES)
    low, high = ticks[0], ticks[-1]

    def x(round_number: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (round_number - first) / max(1, last - first)

    def y(loss: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - loss) / (high - low)

    line = " ".join(f"{x(r):.1f},{y(loss):.1f}" for r, loss in drawn)
    floor = f"{x(last):.1f},{y(low):.1f} {x(first):.1f},{y(low):.1f}"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(_grid_line(y(tick), _number(tick, ticks)) for tick in ticks),
        *_round_labels(first, last, x),
        f'<polygon class="area" points="{line} {floor}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<circle class="now" cx="{x(last):.1f}" cy="{y(drawn[-1][1]):.1f}" r="3.5"/>',
        "</svg>",
    ]
    return "".join(parts)


def nice_ticks(low: float, high: float, most_steps: int) -> list[float]:
    """Round numbers that enclose [low, high], at least two, at equal distances."""
    span = max(high - low, abs(high) * 1e-3, 1e-6)
    step = _nice_step(span / most_steps)
    start, stop = math.floor(low / step), math.ceil(high / step)
    return [step * index for index in range(start, max(stop, start + 1) + 1)]


def _nice_step(at_least: float) -> float:
    magnitude: float = 10.0 ** math.floor(math.log10(at_least))
    return next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= at_least * 0.999)


def _number(tick: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    decimals = next((d for d in range(6) if abs(step * 10**d - round(step * 10**d)) < 1e-6), 6)
    return f"{tick:.{decimals}f}"


def _grid_line(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _round_labels(first: int, last: int, x: Callable[[float], float]) -> list[str]:
    most = max(2, (_WIDTH - _LEFT) // (_LABEL_CHARACTERS * (len(f"{last:,}") + 6)))
    ticks = [round(t) for t in nice_ticks(first, last, min(6, most)) if first <= t <= last]
    return [
        f'<text class="tick" x="{x(tick):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{tick:,}'
        "</text>"
        for tick in sorted(set(ticks))
    ]
