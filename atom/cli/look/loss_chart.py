"""A line chart in a terminal: two by four dots per character (Unicode's braille patterns), or one
by two where it knows only ASCII."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

_LABEL_COLUMNS = 7
_MIN_COLUMNS = 20

Point = tuple[float, float]


@dataclass(frozen=True)
class Grain:
    """What the dots of one character are."""

    bits: Sequence[Sequence[int]]
    """Of the dot in each column, from the left, and row, from the top."""
    characters: str
    """By the sum of the bits of its dots."""


BRAILLE = Grain(
    ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80)),
    "".join(map(chr, range(0x2800, 0x2900))),
)
ASCII = Grain(((1, 2),), " '.:")


class LossChart:
    """Draws `points` (round, loss), from the first to the last: with the rounds that are still to
    come, the curve of a long run would be a dot for days."""

    def __init__(self, points: Sequence[Point], height: int = 6) -> None:
        self.points = [point for point in points if math.isfinite(point[1])]
        self.height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < _MIN_COLUMNS or not self.points:
            return
        grain, side = (ASCII, "|") if options.ascii_only else (BRAILLE, "│")
        low, high = _span([loss for _, loss in self.points])
        quiet, line = Style(dim=True), console.get_style("bar.complete")
        width = options.max_width - _LABEL_COLUMNS - 1
        first, last = self._rounds()
        for row, text in enumerate(
            dots(self.points, (first, last), (low, high), width, self.height, grain)
        ):
            label = {0: f"{high:.2f}", self.height - 1: f"{low:.2f}"}.get(row, "")
            yield Segment(f"{label:>{_LABEL_COLUMNS - 1}} {side}", quiet)
            yield Segment(text, line)
            yield Segment.line()
        axis = f"{first:<{width // 2},.0f}{last:>{width - width // 2},.0f}"
        yield Segment(" " * (_LABEL_COLUMNS + 1) + axis, quiet)
        yield Segment.line()

    def _rounds(self) -> tuple[float, float]:
        """Apart from each other, whatever rounds a lease claims."""
        first, last = self.points[0][0], self.points[-1][0]
        return first, max(last, first + max(1.0, math.ulp(first)))


def dots(
    points: Sequence[Point],
    x_span: tuple[float, float],
    y_span: tuple[float, float],
    columns: int,
    rows: int,
    grain: Grain,
) -> list[str]:
    """`rows` lines of `columns` characters; neighbouring points are joined by a line."""
    cells = [[0] * columns for _ in range(rows)]
    wide, tall = len(grain.bits) * columns - 1, len(grain.bits[0]) * rows - 1

    def place(point: Point) -> tuple[int, int]:
        x = (point[0] - x_span[0]) / (x_span[1] - x_span[0])
        y = (y_span[1] - point[1]) / (y_span[1] - y_span[0])
        return round(x * wide), round(y * tall)

    placed = [place(point) for point in points]
    for start, end in zip(placed, placed[1:] or placed, strict=False):
        for x, y in _line(start, end):
            if 0 <= x <= wide and 0 <= y <= tall:
                column, left = divmod(x, len(grain.bits))
                row, above = divmod(y, len(grain.bits[0]))
                cells[row][column] |= grain.bits[left][above]
    return ["".join(grain.characters[cell] for cell in row) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    dx, dy = (end[0] - start[0]) / steps, (end[1] - start[1]) / steps
    return [(round(start[0] + dx * i), round(start[1] + dy * i)) for i in range(steps + 1)]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.05, math.ulp(low), math.ulp(high))
    return (low - margin, high + margin) if high - low < 0.1 else (low, high)
