"""A line chart in a terminal: two by four dots per character (Unicode's braille patterns)."""

import math
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of the dot in column (0, 1) and row (0 at the top … 3)."""
_LABEL_COLUMNS = 7
_MIN_COLUMNS = 20

Point = tuple[float, float]


class LossChart:
    """Draws `points` (round, loss), from the first to the last: with the rounds that are still to
    come, the curve of a long run would be a dot for days."""

    def __init__(self, points: Sequence[Point], height: int = 6) -> None:
        self.points = [point for point in points if math.isfinite(point[1])]
        self.height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.ascii_only or options.max_width < _MIN_COLUMNS or not self.points:
            return
        low, high = _span([loss for _, loss in self.points])
        quiet, line = Style(dim=True), console.get_style("bar.complete")
        width = options.max_width - _LABEL_COLUMNS - 1
        first, last = self._rounds()
        for row, text in enumerate(
            dots(self.points, (first, last), (low, high), width, self.height)
        ):
            label = {0: f"{high:.2f}", self.height - 1: f"{low:.2f}"}.get(row, "")
            yield Segment(f"{label:>{_LABEL_COLUMNS - 1}} │", quiet)
            yield Segment(text, line)
            yield Segment.line()
        axis = f"{first:<{width // 2}.0f}{last:>{width - width // 2}.0f}"
        yield Segment(" " * (_LABEL_COLUMNS + 1) + axis, quiet)
        yield Segment.line()

    def _rounds(self) -> tuple[float, float]:
        first, last = self.points[0][0], self.points[-1][0]
        return first, max(last, first + 1)


def dots(
    points: Sequence[Point],
    x_span: tuple[float, float],
    y_span: tuple[float, float],
    columns: int,
    rows: int,
) -> list[str]:
    """`rows` lines of `columns` characters; neighbouring points are joined by a line."""
    cells = [[0] * columns for _ in range(rows)]
    wide, tall = 2 * columns - 1, 4 * rows - 1

    def place(point: Point) -> tuple[int, int]:
        x = (point[0] - x_span[0]) / (x_span[1] - x_span[0])
        y = (y_span[1] - point[1]) / (y_span[1] - y_span[0])
        return round(x * wide), round(y * tall)

    placed = [place(point) for point in points]
    for start, end in zip(placed, placed[1:] or placed, strict=False):
        for x, y in _line(start, end):
            if 0 <= x <= wide and 0 <= y <= tall:
                cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return ["".join(chr(_BLANK + cell) for cell in row) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    dx, dy = (end[0] - start[0]) / steps, (end[1] - start[1]) / steps
    return [(round(start[0] + dx * i), round(start[1] + dy * i)) for i in range(steps + 1)]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low - 0.05, high + 0.05) if high - low < 0.1 else (low, high)
