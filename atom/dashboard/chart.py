"""Curves as SVG: pure, one picture from one list of points. Colours come from the style."""

import math
from collections.abc import Sequence
from html import escape

from atom.dashboard.history import Point, thinned

_WIDTH, _HEIGHT = 640, 240
_RIGHT, _TOP, _BOTTOM = 30, 14, 40
_MOST_POINTS = 400
_GRID_LINES = 4
_CHARACTER = 11.5
"""Width of a digit in viewBox units, about, in the largest size that the style gives `.tick`."""
_GAP = 10
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400

Mark = tuple[float, str]
"""(place on an axis, what is written there)."""


def loss_chart(points: Sequence[Point]) -> str:
    """An `<svg>` of loss over rounds. `points` has at least two rounds."""
    drawn = thinned(points, _MOST_POINTS)
    ticks = nice_ticks(min(y for _, y in drawn), max(y for _, y in drawn), _GRID_LINES)
    return _chart("loss by round", drawn, ticks, round_marks(drawn[0][0], drawn[-1][0]))


def speed_chart(points: Sequence[Point], unit: str) -> str:
    """An `<svg>` of speeds over the seconds until now. At least two points."""
    drawn = thinned(points, _MOST_POINTS)
    ticks = nice_ticks(0.0, max(1.0, *(y for _, y in drawn)), _GRID_LINES)
    return _chart(unit, drawn, ticks, ago_marks(drawn[0][0], drawn[-1][0]))


def nice_ticks(low: float, high: float, most_steps: int) -> list[float]:
    """Round numbers that enclose [low, high], at least two, at equal distances."""
    span = max(high - low, abs(high) * 1e-3, 1e-6)
    step = _nice_step(span / most_steps)
    start, stop = math.floor(low / step), math.ceil(high / step)
    return [step * index for index in range(start, max(stop, start + 1) + 1)]


def round_marks(first: int, last: int) -> list[Mark]:
    """Rounds to write below a curve, as many as there is room for."""
    ticks = _whole(nice_ticks(first, last, _room_for(f"{last:,}")))
    return [(tick, f"{tick:,}") for tick in ticks if first <= tick <= last]


def ago_marks(first_s: int, last_s: int) -> list[Mark]:
    """Times to write below a curve that ends now: "10 min ago", "5 min ago", "now"."""
    span_s = max(last_s - first_s, 1)
    units = ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min"), (1, "s"))
    unit_s, unit = next(each for each in units if span_s >= 2 * each[0] or each[0] == 1)
    ticks = _whole(nice_ticks(0, span_s / unit_s, _room_for("00 min ago")))
    past = [tick for tick in reversed(ticks) if 0 < tick * unit_s <= span_s]
    return [*((last_s - ago * unit_s, f"{ago:,} {unit} ago") for ago in past), (last_s, "now")]


def _whole(ticks: Sequence[float]) -> list[int]:
    return [round(tick) for tick in ticks if abs(tick - round(tick)) < 1e-6]


def _room_for(label: str) -> int:
    """Steps between labels of that length that fit side by side."""
    return max(1, min(6, int(_WIDTH * 0.8 / (_CHARACTER * (len(label) + 3)))))


def _chart(
    title: str, drawn: Sequence[Point], ticks: Sequence[float], marks: Sequence[Mark]
) -> str:
    """`ticks` enclose the values, `marks` lie between the first and the last place."""
    first, last = drawn[0][0], drawn[-1][0]
    labels = _numbers(ticks)
    left = _GAP + _CHARACTER * (max(map(len, labels)) + 0.5)

    def x(place: float) -> float:
        return left + (_WIDTH - left - _RIGHT) * (place - first) / max(1, last - first)

    def y(value: float) -> float:
        low, high = ticks[0], ticks[-1]
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    line = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in drawn)
    floor = f"{x(last):.1f},{y(ticks[0]):.1f} {x(first):.1f},{y(ticks[0]):.1f}"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *(_grid_line(left, y(tick), text) for tick, text in zip(ticks, labels, strict=True)),
        *(_mark(x(place), text) for place, text in marks),
        f'<polygon class="area" points="{line} {floor}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<circle class="now" cx="{x(last):.1f}" cy="{y(drawn[-1][1]):.1f}" r="4"/>',
        "</svg>",
    ]
    return "".join(parts)


def _nice_step(at_least: float) -> float:
    magnitude: float = 10.0 ** math.floor(math.log10(at_least))
    return next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= at_least * 0.999)


def _numbers(ticks: Sequence[float]) -> list[str]:
    """With as many decimals as tell them apart; thousands and millions as k and M."""
    step = ticks[1] - ticks[0]
    scale, unit = next(
        (each for each in ((1e6, "M"), (1e3, "k")) if ticks[-1] >= 10 * each[0]), (1.0, "")
    )
    steps = (step / scale * 10**decimals for decimals in range(6))
    decimals = next((d for d, each in enumerate(steps) if abs(each - round(each)) < 1e-6), 6)
    return [f"{tick / scale:,.{decimals}f}{unit if tick else ''}" for tick in ticks]


def _grid_line(left: float, y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{left - _GAP:.1f}" y="{y + 5:.1f}" text-anchor="end">{label}</text>'
    )


def _mark(x: float, text: str) -> str:
    """Centred below its place, but never beyond the edges of the picture."""
    half = _CHARACTER * len(text) / 2
    inside = min(max(x, half), _WIDTH - half)
    return (
        f'<text class="tick" x="{inside:.1f}" y="{_HEIGHT - 7}" text-anchor="middle">{text}</text>'
    )
