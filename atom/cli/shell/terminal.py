"""The two streams: data on stdout, everything said to a person on stderr."""

import errno
import os
from collections.abc import Mapping, Sequence

import typer
from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

_PLAIN_WIDTH = 120
"""Columns where nobody looks at a terminal (pipes, files)."""
_ANY_WIDTH = 10_000
_LEAST_COLUMNS = 14
"""Of a column whose cells are cut off because nothing else can go."""

THEME = Theme(
    {
        "error": "bold red",
        "hint": "cyan",
        "quiet": "dim",
        "good": "green",
        "bad": "bold red",
        "warning": "yellow",
        "number": "bold",
        "name": "bold cyan",
        "bar.complete": "cyan",
        "bar.finished": "green",
    }
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A reader that has gone is for the caller to judge; Rich would end the thread, and close
        stdout even if it was another stream."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def stdout_console() -> Console:
    """Colour and width of the terminal; plain text into pipes, and where NO_COLOR is set."""
    return _console(stderr=False)


def stderr_console() -> Console:
    return _console(stderr=True)


def draws(console: Console) -> bool:
    """Whether it can write over what it wrote: no file or pipe, nor a terminal that is dumb."""
    return console.is_terminal and not console.is_dumb_terminal


def columns_of(page: RenderableType) -> int:
    """What it would take, were there room."""
    console = Console(width=_ANY_WIDTH, theme=THEME)
    return Measurement.get(console, console.options, page).maximum


def fitting(
    titles: Sequence[str],
    rows: Sequence[Mapping[str, Text | str]],
    width: int | None,
    words: Sequence[str] = (),
    first_to_go: Sequence[str] = (),
) -> Table:
    """A line for each row. Where that is wider than `width` columns go, in that order; what is
    still too wide is cut. `words`: columns that are no numbers."""
    shown = list(titles)
    table = _table(shown, rows, words)
    for title in first_to_go:
        if width is None or columns_of(table) <= width:
            break
        if title in shown:
            shown.remove(title)
            table = _table(shown, rows, words)
    return table


def _table(
    titles: Sequence[str], rows: Sequence[Mapping[str, Text | str]], words: Sequence[str]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for title in titles:
        justify: JustifyMethod = "left" if title in words else "right"
        longest = max((len(row[title]) for row in rows), default=0)
        least = min(longest, _LEAST_COLUMNS)
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows:
        cells = (row[title] for title in titles)
        # As it is: names of folders may have [brackets].
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def print_plainly(page: RenderableType, whole: bool = False) -> None:
    """On stdout; without padding where nobody looks at a terminal: nobody wants it in a file.
    `whole`: nothing of it is folded or cut there, even if $COLUMNS speaks of a terminal."""
    console = stdout_console()
    if console.is_terminal:
        console.print(page)
        return
    if whole:
        console.width = max(console.width, columns_of(page))
    with console.capture() as captured:
        console.print(page, markup=False)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _console(stderr: bool) -> Console:
    console = _Console(stderr=stderr, theme=THEME, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PLAIN_WIDTH
    return console
