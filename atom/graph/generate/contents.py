"""The table at the head of a generated source: one row per sub-model, repetitions said once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atom.base.units import format_bytes
from atom.graph.generate.python_text import LINE_LENGTH, docstring_text, shortened

_LONGEST_PERIOD = 12
"""Sub-models after which a pattern may begin again."""

_FEWEST_SAVED = 2
"""A pattern is said once if that makes the table shorter by at least as many lines."""

_TITLES = ("#", "class", "layers", "parameters", "in", "out")


@dataclass(frozen=True)
class Row:
    """One sub-model; bytes are those of the values that cross its two cuts, per micro-batch."""

    class_name: str
    first_layer: str
    last_layer: str
    parameters: int
    bytes_in: int
    bytes_out: int

    @property
    def span(self) -> str:
        one = self.first_layer == self.last_layer
        return self.first_layer if one else f"{self.first_layer} … {self.last_layer}"

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for rows that differ in the layers' names only."""
        return self.class_name, self.parameters, self.bytes_in, self.bytes_out


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines, each at most `LINE_LENGTH` long."""
    kept = list(_kept(rows))
    cells = [_TITLES, *(_cells(index, rows[index]) for index, again in kept if not again)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_TITLES))]
    spare = LINE_LENGTH - 2 * len(_TITLES) - sum(widths)
    widths[2] = max(widths[2] + min(spare, 0), len(_TITLES[2]))
    yield _line(_TITLES, widths)
    for index, again in kept:
        if again:
            text = _again(rows[index : index + again], index)
            yield docstring_text(shortened(f"  {'…'.rjust(widths[0])}  {text}", LINE_LENGTH))
        else:
            yield _line(_cells(index, rows[index]), widths)


def _kept(rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """(first row, 0) for a row that is written; (first row, count) for rows that repeat the
    pattern before them."""
    index, alike = 0, [row.alike for row in rows]
    while index < len(rows):
        period, repeated = _pattern(alike, index)
        yield from ((row, 0) for row in range(index, index + period))
        if repeated:
            yield index + period, repeated
        index += period + repeated


def _pattern(alike: Sequence[object], start: int) -> tuple[int, int]:
    """(length of the pattern that begins at `start`, rows after it that repeat it)."""
    best = (1, 0)
    for period in range(1, min(_LONGEST_PERIOD, (len(alike) - start) // 2) + 1):
        end = start + period
        while end < len(alike) and alike[end] == alike[end - period]:
            end += 1
        repeated = (end - start) // period * period - period
        if repeated - 1 >= _FEWEST_SAVED and repeated > best[1]:
            best = (period, repeated)
    return best


def _again(rows: Sequence[Row], index: int) -> str:
    layers = f"{rows[0].first_layer} … {rows[-1].last_layer}"
    return f"the same for {layers} ({index} … {index + len(rows) - 1})"


def _cells(index: int, row: Row) -> tuple[str, ...]:
    sizes = format_bytes(row.bytes_in), format_bytes(row.bytes_out)
    return str(index), row.class_name, row.span, f"{row.parameters:,}", *sizes


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    text = ""
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        cell = shortened(cell, width)
        text += "  " + (cell.ljust(width) if column in (1, 2) else cell.rjust(width))
    return docstring_text(text).rstrip()
