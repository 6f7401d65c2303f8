"""Bound on the size of the product: code lines of `atom/`, and the length of one file.

A code line holds code: docstrings, comments and blank lines are free, and so is generated code. The
bound lies in `budget.toml` beside this file. A commit that makes the product smaller lowers it:

    python tests/test_budget.py --lower

A commit that raises it does so by hand and names what was removed in return.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).parent / "budget.toml"
PACKAGE = "atom"
GENERATED = "wire"
MOST_LINES_OF_A_FILE = 500
HEADER = """\
# Code lines of `atom/` (without docstrings, comments, blank lines and generated code), at most.
# test_budget.py enforces the bound; `python tests/test_budget.py --lower` lowers it.
"""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@cache
def sources() -> tuple[Path, ...]:
    """Return all hand-written files of the package."""
    files = (ROOT / PACKAGE).rglob("*.py")
    return tuple(sorted(p for p in files if p.relative_to(ROOT).parts[1] != GENERATED))


def code_lines(text: str) -> int:
    """Return the number of lines of a Python source that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in LAYOUT)
    return len({line for span in spans for line in span} - docstring_lines(text))


def docstring_lines(text: str) -> set[int]:
    """Return the line numbers of all strings that stand alone as statements."""
    bodies = (getattr(node, "body", None) for node in ast.walk(ast.parse(text)))
    statements = (each for body in bodies if isinstance(body, list) for each in body)
    return {line for each in statements if is_text(each) for line in lines_of(each)}


def is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


def lines_of(statement: ast.stmt) -> Iterable[int]:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def measured() -> int:
    """Return today's code lines of the product."""
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in sources())


def budget() -> int:
    bound: int = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["code_lines"]
    return bound


def test_the_product_keeps_within_its_budget() -> None:
    assert measured() <= budget()


def test_no_file_is_too_long() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert [str(path) for path, n in lines.items() if n > MOST_LINES_OF_A_FILE] == []


def test_only_code_counts() -> None:
    text = (
        '"""Module."""\n\n# why\nx = (  # one\n    1,\n)\n\n\ndef f():\n    """Docs\n    of f."""\n'
    )
    assert code_lines(text) == 4
    assert code_lines('x = """\n\ntext\n"""\n') == 4


if __name__ == "__main__":
    lowered = min(budget(), measured())
    if "--lower" in sys.argv:
        BUDGET.write_text(f"{HEADER}\ncode_lines = {lowered}\n", encoding="utf-8")
    sys.stdout.write(f"{measured()} code lines, at most {lowered}\n")
