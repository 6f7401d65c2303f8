"""Python statements as lines: whole where they fit, else one argument each.

Knows text only: no torch, nothing that differs between Python versions. Statements are those that
the printer writes: assignments of one call or one short expression, signatures, returns.
"""

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

LINE_LENGTH = 100
"""What statements are wrapped at; a single argument or target may be longer."""
INDENT = "    "
BODY = INDENT * 2
"""Where the statements of a method stand."""

_LONGEST_NAME = 28


def assignment(
    targets: Sequence[str],
    head: str,
    arguments: Sequence[str] | None,
    comment: str = "",
    indent: str = BODY,
) -> Iterator[str]:
    """`targets = head(arguments)  # comment`, or `targets = head` without arguments; a comment
    that the line has no room for stands before it."""
    tail = f"  # {comment}" if comment else ""
    left = f"{indent}{', '.join(targets)} = {head}"
    if arguments is not None:
        yield from _wrapped(f"{left}(", arguments, f"){tail}", indent)
    elif fits(left + tail):
        yield f"{left}{tail}"
    else:
        yield f"{indent}# {comment}"
        yield left


def signature(name: str, arguments: Sequence[str], indent: str = INDENT) -> Iterator[str]:
    """`def name(arguments):`"""
    yield from _wrapped(f"{indent}def {name}(", arguments, "):", indent)


def returned(names: Sequence[str], indent: str = BODY) -> Iterator[str]:
    """`return (names)`: always a tuple."""
    if len(names) == 1:
        yield f"{indent}return ({names[0]},)"
    else:
        yield from _wrapped(f"{indent}return (", names, ")", indent)


def _wrapped(left: str, items: Sequence[str], right: str, indent: str) -> Iterator[str]:
    whole = f"{left}{', '.join(items)}{right}"
    if not items or fits(whole):
        yield whole
        return
    yield left
    yield from (f"{indent}{INDENT}{item}," for item in items)
    yield f"{indent}{right}"


def remark(parts: Iterable[str], indent: str = BODY) -> Iterator[str]:
    """A comment of its own: parts set apart by semicolons, filled into as many lines as needed."""
    line = ""
    for part in parts:
        if line and not fits(f"{indent}# {line}; {part}"):
            yield f"{indent}# {line}"
            line = ""
        line = f"{line}; {part}" if line else part
    if line:
        yield f"{indent}# {line}"


def fits(line: str) -> bool:
    return len(line) <= LINE_LENGTH


def identifier(text: str) -> str:
    """A Python name that resembles `text`; of a long one the end, which says most."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if len(name) > _LONGEST_NAME:
        tail = name[-_LONGEST_NAME:]
        name = tail.partition("_")[2].strip("_") or tail
    if name[0].isdigit():
        name = f"layer_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def unique(base: str, taken: set[str]) -> str:
    """`base`, or with a number if that is taken; the result is taken from now on."""
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def docstring_text(text: str) -> str:
    """Names come from the user's model: none may end the docstring it is printed in."""
    return text.replace("\\", "/").replace('"', "'")


def shortened(text: str, width: int) -> str:
    """At most `width` characters: of a longer text the beginning and the end."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
