"""The two output streams: data on stdout, messages to a person on stderr."""

import errno
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

_PLAIN_WIDTH = 120
"""Width of output that goes to a pipe or a file, in columns."""
_ANY_WIDTH = 10_000
_LEAST_COLUMNS = 14
"""Width to which a column of a table may be cut, in characters."""

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
        """Raise BrokenPipeError, which the caller handles.

        Rich would raise SystemExit, and redirect stdout even if another stream had broken.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Messages(io.FileIO):
    """File of messages to a person. A message that a full disk refuses is dropped."""

    def write(self, data: Any) -> int:
        """Write bytes, and return how many were written or dropped."""
        try:
            return super().write(data)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return len(data)


def lead_nowhere(*streams: int) -> None:
    """Redirect streams to /dev/null, also for output that Python still buffers for them.

    Flushing the buffer of a broken stream at exit would raise another error.

    Args:
        streams: Numbers of open files.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


def stdout_console() -> Console:
    """Return a console on stdout with the terminal's colours and width.

    In pipes and files it writes plain text; with NO_COLOR it uses no colours.
    """
    return _console(stderr=False)


def stderr_console() -> Console:
    """Return a console on stderr, otherwise as `stdout_console`."""
    return _console(stderr=True)


def draws(console: Console) -> bool:
    """Return True if the console can redraw: it is a terminal, and not a dumb one."""
    return console.is_terminal and not console.is_dumb_terminal


def columns_of(page: RenderableType) -> int:
    """Return the width of a page when nothing is folded or cut, in columns."""
    console = Console(width=_ANY_WIDTH, theme=THEME)
    return Measurement.get(console, console.options, page).maximum


def fitting(
    titles: Sequence[str],
    rows: Sequence[Mapping[str, Text | str]],
    width: int | None,
    words: Sequence[str] = (),
    first_to_go: Sequence[str] = (),
) -> Table:
    """Return a table with one line per row that fits a terminal.

    A table that is too wide loses whole columns; if it is still too wide, its cells are cut when it
    is printed.

    Args:
        titles: Titles of the columns.
        rows: Cells of each row, by title.
        width: Width of the terminal in columns; None: no limit.
        words: Titles of columns with text, which are aligned left; numbers are aligned right.
        first_to_go: Titles of columns that may be left out, first to be left out first.
    """
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
        # As Text, without markup: names of folders may have [brackets].
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def facts(rows: Sequence[Sequence[str | Text]]) -> RenderableType:
    """Return rows as an indented table without titles: a label, figures, and text that may fold.

    Args:
        rows: Cells, equally many in each row. Cells between the first and the last one are figures,
            which are aligned right.
    """
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    for _ in rows[0][1:-1]:
        table.add_column(justify="right")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 2), expand=False)


def print_plainly(page: RenderableType, whole: bool = False) -> None:
    """Print a page on stdout; in pipes and files without spaces at the ends of lines.

    Args:
        page: Page to print.
        whole: If True, fold and cut nothing in pipes and files, whatever $COLUMNS says.
    """
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
