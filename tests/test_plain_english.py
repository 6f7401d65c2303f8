"""Bound on the phrases that a reader must decode, in the text that people read.

Text is every docstring, comment and message of the Python sources and every line of the pages.
A phrase is flagged if it points at a thing without naming it (`those of`, `what comes`, a docstring
that begins with "Of"), or if it is an old word (`reckon`, `anew`). The patterns are a rough sieve:
a flagged line is a line to read again, and a few are harmless. So each folder has a bound on the
share of flagged pieces. To list all of them:

    python tests/test_plain_english.py
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = {"wire", "__pycache__"}
ROOMS = sorted(f"atom/{path.parent.name}" for path in ROOT.glob("atom/[!w]*/__init__.py"))
WORDS_OF_A_MESSAGE = 3
MOST_POINTING_FIRST_LINES = 40
# Share of flagged pieces, at most.
BOUNDS = dict.fromkeys(["atom", *ROOMS, "docs", "tests", "README.md"], 0.02)

_POINTING = """
    also as at both by for from he if in it its nor of on or so that their there these they
    this those to unless until what whatever when where whether which while who whoever whose
    with without
"""
_OLD = """
    afresh anew aside beneath forthwith foretell foretold hereafter hitherto meanwhile mend mended
    mends reckon reckoned reckoning reckons thereby therein thereof whereby wherein whereof
"""
_VERBS = """
    another are came can cannot comes could did does goes had has have holds is it lay lies may must
    needs no nobody others should stands takes they travels was were
"""
_OLD_PHRASES = r"at hand|by lot|brought home|give[sn]? way|tells? apart|told apart|for good"
_BEFORE = r"(?:^|[.;:,(] ?|\b(?:and|as|by|for|from|in|of|on|than|to|with) )"
_PLACES = r"(?:above|behind|below|beside|between|here|so|then|there)"


def any_of(words: str) -> str:
    return "|".join(words.split())


PATTERNS = [
    re.compile(pattern, re.I)
    for pattern in (
        rf"{_BEFORE}(?:who(?:ever|m)? (?!else\b)\w+|what(?:ever)? (?:{any_of(_VERBS)})\b)",
        r"\b(?:(?:that|those|the ones?|the same) of|those that|the ones? that|such an? one)\b",
        r"\b(?:no|every|some|any)body\b",
        rf"\b(?:{any_of(_OLD)}|{_OLD_PHRASES})\b",
        rf"(?:^|[.;:] ){_PLACES} (?:stands?|lies?|goes|comes?)\b",
    )
]
POINTING_FIRST = re.compile(rf"(?:{any_of(_POINTING)}|the same)\b", re.I)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a person reads, with its place."""

    path: Path
    line: int
    text: str
    is_docstring: bool = False

    @property
    def flagged(self) -> str:
        """First phrase that a reader must decode; empty if there is none."""
        if self.points_first:
            return self.text.split()[0]
        found = (pattern.search(self.text) for pattern in PATTERNS)
        return next((match[0].strip(" .,;:(") for match in found if match), "")

    @property
    def points_first(self) -> bool:
        """True for a docstring whose first word points at something that it does not name."""
        return self.is_docstring and bool(POINTING_FIRST.match(self.text.lstrip()))

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.flagged!r} in: {text[:120]}"


def python_pieces(path: Path, source: str) -> Iterator[Piece]:
    """Yield docstrings, messages and comments of a Python source."""
    nodes = list(ast.walk(ast.parse(source)))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if not isinstance(node, ast.expr) or id(node) in parts:
            continue
        text, is_docstring = literal_text(node), id(node) in alone
        if text and (is_docstring or len(text.split()) >= WORDS_OF_A_MESSAGE):
            yield Piece(path, node.lineno, text, is_docstring)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Piece(path, token.start[0], token.string.lstrip("# "))


def literal_text(node: ast.AST) -> str:
    """Return the text of a string literal, with an ellipsis for each value that is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal_text(part) or "…" for part in parts)
        case _:
            return ""


def page_pieces(path: Path, source: str) -> Iterator[Piece]:
    """Yield the lines of a Markdown page that hold text, without code blocks."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif line.strip() and not fenced:
            yield Piece(path, number, line)


@cache
def pieces(folder: str) -> tuple[Piece, ...]:
    """Return all text of one top folder or page."""
    top = ROOT / folder
    files = sorted(top.rglob("*")) if top.is_dir() else [top]
    read = {".py": python_pieces, ".md": page_pieces}
    return tuple(
        piece
        for path in files
        if path.suffix in read and not GENERATED.intersection(path.parts) and path != Path(__file__)
        for piece in read[path.suffix](path, path.read_text(encoding="utf-8"))
    )


def listed(found: Iterable[Piece]) -> str:
    return "\n".join(map(str, found))


@pytest.mark.parametrize("folder", BOUNDS)
def test_few_phrases_have_to_be_decoded(folder: str) -> None:
    found = [piece for piece in pieces(folder) if piece.flagged]
    assert len(found) <= BOUNDS[folder] * len(pieces(folder)), listed(found)


def test_docstrings_of_the_product_begin_with_the_thing_itself() -> None:
    found = [piece for piece in pieces("atom") if piece.points_first]
    assert len(found) <= MOST_POINTING_FIRST_LINES, listed(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Wait for who asks first.", "for who asks"),
        ("What is not used is dropped.", "What is"),
        ("Sum of what comes from members.", "of what comes"),
        ("The digests of parts and those of states.", "those of"),
        ("The peer is known to nobody.", "nobody"),
        ("The memory is reckoned for each layer.", "reckoned"),
        ("The result is there. Beside it lies the index.", ""),
        ("Here stands the rank.", "Here stands"),
        ("The peer that asks waits until a round begins.", ""),
    ],
)
def test_phrases_are_flagged(text: str, phrase: str) -> None:
    assert Piece(Path(), 1, text).flagged == phrase


def test_text_is_found_wherever_people_read_it() -> None:
    source = '''"""Of a module."""
x = "one two"  # anew
raise E(f"{x} is for nobody", "name the file")
'''
    found = list(python_pieces(Path(), source))
    assert [(piece.line, piece.flagged) for piece in found if piece.flagged] == [
        (1, "Of"),
        (3, "nobody"),
        (2, "anew"),
    ]
    assert "name the file" in {piece.text for piece in found}


def test_code_on_a_page_is_no_text() -> None:
    page = "text for nobody\n```\ncode for nobody\n```\n\nlast line\n"
    assert [piece.line for piece in page_pieces(Path(), page)] == [1, 6]


def test_most_of_the_product_is_text_to_check() -> None:
    assert len(pieces("atom")) > len(pieces("atom/swarm")) > 1000


if __name__ == "__main__":
    for name in BOUNDS:
        sys.stdout.write(listed(piece for piece in pieces(name) if piece.flagged) + "\n")
