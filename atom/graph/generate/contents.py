"""The table at the head of a generated source: one row per sub-model, repetitions said once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from atom.base.units import format_bytes
from atom.graph.generate.python_text import LINE_LENGTH, docstring_text, shortened

_FEWEST_REPEATED = 2
"""Sub-models like the one before them that a line stands for."""

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
    cells = [_TITLES, *(_cells(run[0], rows[run[0]]) for run in kept if len(run) == 1)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_TITLES))]
    spare = LINE_LENGTH - 2 * len(_TITLES) - sum(widths)
    widths[2] = max(widths[2] + min(spare, 0), len(_TITLES[2]))
    yield _line(_TITLES, widths)
    for run in kept:
        if len(run) == 1:
            yield _line(_cells(run[0], rows[run[0]]), widths)
        else:
            layers = f"{rows[run[0]].first_layer} … {rows[run[-1]].last_layer}"
            text = f"the same for {layers} ({run[0]} … {run[-1]})"
            yield docstring_text(shortened(f"  {'…'.rjust(widths[0])}  {text}", LINE_LENGTH))


def _kept(rows: Sequence[Row]) -> Iterator[range]:
    """A row that is written, by itself; rows that are like the one before them, together."""
    first = 0
    for _, alike in groupby(rows, lambda row: row.alike):
        end = first + len(list(alike))
        if end - first > _FEWEST_REPEATED:
            yield range(first, first + 1)
            yield range(first + 1, end)
        else:
            yield from (range(row, row + 1) for row in range(first, end))
        first = end


def _cells(index: int, row: Row) -> tuple[str, ...]:
    sizes = format_bytes(row.bytes_in), format_bytes(row.bytes_out)
    return str(index), row.class_name, row.span, f"{row.parameters:,}", *sizes


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    text = ""
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        cell = shortened(cell, width)
        text += "  " + (cell.ljust(width) if column in (1, 2) else cell.rjust(width))
    return docstring_text(text).rstrip()
