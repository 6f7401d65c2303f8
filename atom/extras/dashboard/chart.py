"""Chart of losses by round, in SVG. Colours come from the style sheet. Pure."""

from collections.abc import Sequence

Point = tuple[int, float]
"""(round, mean loss of that round)."""


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return every n-th point and the last one, at most `most` points."""
    step = -(-(len(points) - 1) // (most - 1))
    return [*points[:-1:step], points[-1]]


_WIDTH, _HEIGHT = 640, 240
_RIGHT, _TOP, _BOTTOM = 30, 14, 40
_MOST_POINTS = 400
_GRID_LINES = 4
_CHARACTER = 11.5
"""Approximate width of a digit in the largest font of `.tick`, in viewBox units."""
_GAP = 10


def loss_chart(points: Sequence[Point]) -> str:
    """Return an `<svg>` of the loss over rounds. `points` has at least two rounds."""
    drawn = thinned(points, _MOST_POINTS)
    low, high = min(y for _, y in drawn), max(y for _, y in drawn)
    high = max(high, low + abs(low) * 1e-3, low + 1e-6)
    ticks = [low + (high - low) * line / _GRID_LINES for line in range(_GRID_LINES + 1)]
    first, last = drawn[0][0], drawn[-1][0]
    labels = [f"{tick:.5g}" for tick in ticks]
    left = _GAP + _CHARACTER * (max(map(len, labels)) + 0.5)

    def x(place: float) -> float:
        return left + (_WIDTH - left - _RIGHT) * (place - first) / max(1, last - first)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    line = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in drawn)
    floor = f"{x(last):.1f},{y(ticks[0]):.1f} {x(first):.1f},{y(ticks[0]):.1f}"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss by round">',
        *(_grid_line(left, y(tick), text) for tick, text in zip(ticks, labels, strict=True)),
        f'<text class="tick" x="{left:.1f}" y="{_HEIGHT - 7}">{first:,}</text>',
        f'<text class="tick" x="{_WIDTH - _GAP}" y="{_HEIGHT - 7}" text-anchor="end">'
        f"{last:,}</text>",
        f'<polygon class="area" points="{line} {floor}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<circle class="now" cx="{x(last):.1f}" cy="{y(drawn[-1][1]):.1f}" r="4"/>',
        "</svg>",
    ]
    return "".join(parts)


def _grid_line(left: float, y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{left - _GAP:.1f}" y="{y + 5:.1f}" text-anchor="end">{label}</text>'
    )
