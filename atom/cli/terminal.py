"""The two streams: data on stdout, everything said to a person on stderr."""

import os

from rich.console import Console
from rich.theme import Theme

_PLAIN_WIDTH = 120
"""Columns where nobody looks at a terminal (pipes, files)."""

THEME = Theme(
    {
        "error": "bold red",
        "hint": "cyan",
        "quiet": "dim",
        "good": "green",
        "bad": "bold red",
        "number": "bold",
        "name": "bold cyan",
        "bar.complete": "cyan",
        "bar.finished": "green",
    }
)


def stdout_console() -> Console:
    """Colour and width of the terminal; plain text into pipes, and where NO_COLOR is set."""
    return _console(stderr=False)


def stderr_console() -> Console:
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, theme=THEME, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PLAIN_WIDTH
    return console
