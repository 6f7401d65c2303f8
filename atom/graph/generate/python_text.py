"""Python statements laid out over lines, the way `ruff format` lays them out.

Knows text only: no torch, nothing that differs between Python versions. Statements are those that
the printer writes: assignments of one call or one short expression, signatures, returns.
"""

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

LINE_LENGTH = 100
INDENT = "    "
BODY = INDENT * 2
"""Where the statements of a method stand."""

_LONGEST_NAME = 40


def assignment(
    targets: Sequence[str],
    head: str,
    arguments: Sequence[str] | None,
    comment: str = "",
    indent: str = BODY,
) -> Iterator[str]:
    """`targets = head(arguments)  # comment`, or `targets = head` without arguments."""
    tail = f"  # {comment}" if comment else ""
    target = ", ".join(targets)
    whole = f"{indent}{target} = {_call(head, arguments)}"
    if fits(whole + tail):
        yield whole + tail
    elif len(targets) > 1 and not fits(f"{indent}{target} = ("):
        yield f"{indent}("
        yield from (f"{indent}{INDENT}{name}," for name in targets)
        yield from _right(f"{indent}) = ", head, arguments, indent, tail)
    else:
        yield from _right(f"{indent}{target} = ", head, arguments, indent, tail)


def signature(name: str, arguments: Sequence[str], indent: str = INDENT) -> Iterator[str]:
    """`def name(arguments):`"""
    whole = f"{indent}def {name}({', '.join(arguments)}):"
    if fits(whole):
        yield whole
        return
    yield f"{indent}def {name}("
    yield from _inside(arguments, indent + INDENT)
    yield f"{indent}):"


def returned(names: Sequence[str], indent: str = BODY) -> Iterator[str]:
    """`return names`: always a tuple."""
    whole = f"{indent}return {tuple_text(names)}"
    if fits(whole):
        yield whole
        return
    yield f"{indent}return ("
    yield from (f"{indent}{INDENT}{name}," for name in names)
    yield f"{indent})"


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


def tuple_text(names: Sequence[str]) -> str:
    """A tuple of these names, as it is written in an assignment or a return."""
    if len(names) < 2:
        return f"({names[0]},)" if names else "()"
    return ", ".join(names)


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


def _call(head: str, arguments: Sequence[str] | None) -> str:
    return head if arguments is None else f"{head}({', '.join(arguments)})"


def _right(
    left: str, head: str, arguments: Sequence[str] | None, indent: str, tail: str
) -> Iterator[str]:
    """`left`, the call and the comment `tail` after it, on as many lines as that takes."""
    whole = _call(head, arguments)
    if fits(left + whole + tail):
        yield left + whole + tail
    elif arguments and fits(f"{left}{head}("):
        yield f"{left}{head}("
        yield from _inside(arguments, indent + INDENT)
        yield f"{indent}){tail}"
    elif left.strip() and (arguments or fits(f"{indent}{INDENT}{whole}")):
        yield f"{left}("
        yield from _right(indent + INDENT, head, arguments, indent + INDENT, "")
        yield f"{indent}){tail}"
    else:
        yield left + whole + tail


def _inside(arguments: Sequence[str], indent: str) -> Iterator[str]:
    """The lines between a call's parentheses: all in one, or one each."""
    together = indent + ", ".join(arguments)
    if fits(together):
        yield together
        return
    comma = "," if len(arguments) > 1 else ""
    for argument in arguments:
        if fits(f"{indent}{argument},") or not argument.endswith("]"):
            yield f"{indent}{argument},"
            continue
        start, _, items = argument[:-1].partition("[")
        yield f"{indent}{start}["
        yield from (f"{indent}{INDENT}{item}," for item in _items(items))
        yield f"{indent}]{comma}"


def _items(text: str) -> Iterator[str]:
    """The text between a list's brackets, cut at its own commas."""
    depth = start = 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()
