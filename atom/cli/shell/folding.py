"""Sentences on a terminal: folded between words, never within what is there to be copied. Pure."""

import re
from collections.abc import Iterator

_WHOLE = re.compile(r"(?:`[^`]*`|\S)+")
"""A word. What stands in backquotes is a command: whoever pastes half of it is worse off than with
an ugly line. A word longer than the terminal is left to it, which copies it without a break."""
_LEAST_COLUMNS = 20


def folded(text: str, columns: int) -> Iterator[str]:
    """Lines of at most so many columns, but for a word that is longer."""
    room = max(columns, _LEAST_COLUMNS)
    line = ""
    for word in _WHOLE.findall(text):
        if line and len(line) + 1 + len(word) > room:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line
