"""The two streams: data on stdout, everything said to a person on stderr."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.theme import Theme

_PLAIN_WIDTH = 120
"""Columns where nobody looks at a terminal (pipes, files)."""
_ANY_WIDTH = 10_000

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


def waiting(doing: str) -> AbstractContextManager[object]:
    """Somebody who waits at a terminal is told for what, such as heavy imports."""
    console = stderr_console()
    return console.status(doing) if draws(console) else nullcontext()


@contextmanager
def following(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows what somebody else is at, as often as the function that it gives is told: in place on a
    terminal, else a line for each change."""
    said = ""

    def tell(doing: str) -> None:
        nonlocal said
        if doing in ("", said):
            return
        said = doing
        if draws(console):
            status.update(doing)
            status.start()
        else:
            console.print(doing, markup=False, soft_wrap=True)

    status = console.status("")
    try:
        yield tell
    finally:
        status.stop()


def columns_of(page: RenderableType) -> int:
    """What it would take, were there room."""
    console = Console(width=_ANY_WIDTH)
    return Measurement.get(console, console.options, page).maximum


def print_plainly(page: RenderableType, least_columns: int = 0) -> None:
    """On stdout; without padding where nobody looks at a terminal: nobody wants it in a file.
    `least_columns`: it has that many there, even if $COLUMNS speaks of a narrower terminal."""
    console = stdout_console()
    if console.is_terminal:
        console.print(page)
        return
    console.width = max(console.width, least_columns)
    with console.capture() as captured:
        console.print(page)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _console(stderr: bool) -> Console:
    console = _Console(stderr=stderr, theme=THEME, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PLAIN_WIDTH
    return console
