"""Python statements as lines: whole where they fit, else with their arguments apart.

Knows text only: no torch, nothing that differs between Python versions.
"""

import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

LINE_LENGTH = 100
"""What statements are wrapped at; a single argument or target may be longer."""
INDENT = "    "
BODY = INDENT * 2
"""Where the statements of a method stand."""

_LONGEST_NAME = 28


def assignment(
    targets: Sequence[str],
    function: str,
    arguments: Sequence[str],
    comment: str = "",
    indent: str = BODY,
) -> Iterator[str]:
    """`targets = function(arguments)  # comment`; several targets or `(one,)` unpack a tuple."""
    tail = f"  # {comment}" if comment else ""
    yield from _wrapped(
        f"{indent}{', '.join(targets)} = {function}(", arguments, f"){tail}", indent
    )


def signature(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """`def name(self, arguments):`"""
    yield from _wrapped(f"{INDENT}def {name}(", ["self", *arguments], "):", INDENT)


def returned(names: Sequence[str]) -> Iterator[str]:
    """`return (names)`: always a tuple."""
    if len(names) == 1:
        yield f"{BODY}return ({names[0]},)"
    else:
        yield from _wrapped(f"{BODY}return (", names, ")", BODY)


def _wrapped(left: str, items: Sequence[str], right: str, indent: str) -> Iterator[str]:
    whole = f"{left}{', '.join(items)}{right}"
    if not items or len(whole) <= LINE_LENGTH:
        yield whole
        return
    yield left
    together = f"{indent}{INDENT}{', '.join(items)}"
    if len(together) <= LINE_LENGTH:
        yield together
    else:
        yield from (f"{indent}{INDENT}{item}," for item in items)
    yield f"{indent}{right}"


def remark(parts: Iterable[str]) -> Iterator[str]:
    """A comment of its own: parts set apart by semicolons, filled into as many lines as needed."""
    line = ""
    for part in parts:
        if line and len(f"{BODY}# {line}; {part}") > LINE_LENGTH:
            yield f"{BODY}# {line}"
            line = ""
        line = f"{line}; {part}" if line else part
    if line:
        yield f"{BODY}# {line}"


def identifier(text: str) -> str:
    """A Python name that resembles `text`; of a long one the end, which says most."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if len(name) > _LONGEST_NAME:
        tail = name[-_LONGEST_NAME:]
        name = tail.partition("_")[2].strip("_") or tail
    if name[0].isdigit():
        name = f"layer_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def unique(base: str, taken: Collection[str]) -> str:
    """`base`, or with a number if that is taken."""
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def docstring_text(text: str) -> str:
    """Names come from the user's model: none may end the docstring it is printed in."""
    return text.replace("\\", "/").replace('"', "'")
