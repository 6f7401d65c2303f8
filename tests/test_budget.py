"""The size of every room is held: figures may fall, and rise only with a capability asked for.

The budget lies in `budget.toml` beside this file. After a change that made rooms smaller:

    python tests/test_budget.py --lower      # writes today's figures where they are lower

A commit that raises a figure does so by hand, and says by how much and what it tried to take away.
"""

import ast
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).parent / "budget.toml"
PACKAGE = "atom"
GENERATED = "wire"
FIGURES = ("lines", "files", "classes", "chain")
"""Lines, files and classes of a room; files on the longest chain of imports that starts in it."""
MOST_LINES_OF_A_FILE = 500
HEADER = """\
# What each room of `atom/` may have at most: lines, files, classes, and the files on the longest
# chain of imports that starts in it. Held by test_budget.py. Figures only fall
# (`python tests/test_budget.py --lower`), unless a commit brings a capability that was asked for
# and says what it costs.
"""

Figures = Mapping[str, int]


@cache
def sources() -> tuple[Path, ...]:
    """All hand-written files of the package."""
    files = (ROOT / PACKAGE).rglob("*.py")
    return tuple(sorted(p for p in files if p.relative_to(ROOT).parts[1] != GENERATED))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: Path) -> str:
    """The folder of `atom/` it lies in; files beside the folders are the room `top`."""
    parts = path.relative_to(ROOT).parts
    return parts[1] if len(parts) > 2 else "top"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Modules of the package that the file imports when it is loaded."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {node.module, *inner} & known.keys()
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known.keys()
    return found


def longest_chains() -> dict[str, int]:
    """Of every module: how many files the longest chain of imports has that starts with it."""
    known = {module_of(path): path for path in sources()}
    lengths: dict[str, int] = {}

    def length(module: str, above: Sequence[str]) -> int:
        assert module not in above, f"imports in a circle: {[*above, module]}"
        if module not in lengths:
            below = imports_of(known[module], known) - {module}
            longest = max((length(one, [*above, module]) for one in below), default=0)
            lengths[module] = 1 + longest
        return lengths[module]

    for module in known:
        length(module, [])
    return lengths


def measured() -> dict[str, Figures]:
    """Today's figures of every room."""
    chains = longest_chains()
    rooms: dict[str, dict[str, int]] = {}
    for path in sources():
        room = rooms.setdefault(room_of(path), dict.fromkeys(FIGURES, 0))
        room["lines"] += len(path.read_text(encoding="utf-8").splitlines())
        room["files"] += 1
        room["classes"] += sum(isinstance(n, ast.ClassDef) for n in ast.walk(tree_of(path)))
        room["chain"] = max(room["chain"], chains[module_of(path)])
    return dict(sorted(rooms.items()))


def budget() -> dict[str, Figures]:
    held: dict[str, Figures] = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    return held


def table(rooms: Mapping[str, Figures]) -> str:
    """The budget file's text, a line for each room."""
    rows = [
        f"{room} = {{ {', '.join(f'{name} = {figures[name]}' for name in FIGURES)} }}"
        for room, figures in sorted(rooms.items())
    ]
    return HEADER + "\n" + "\n".join(rows) + "\n"


def lowered(held: Mapping[str, Figures], now: Mapping[str, Figures]) -> dict[str, Figures]:
    """The budget with what has fallen; rooms that are gone have none, new ones are not added."""
    return {
        room: {name: min(held[room][name], figures[name]) for name in FIGURES}
        for room, figures in now.items()
        if room in held
    }


def test_every_room_has_a_budget() -> None:
    assert measured().keys() <= budget().keys()


@pytest.mark.parametrize("figure", FIGURES)
def test_rooms_keep_within_their_budget(figure: str) -> None:
    held, now = budget(), measured()
    over = {
        room: f"{figures[figure]} {figure}, at most {held[room][figure]}"
        for room, figures in now.items()
        if room in held and figures[figure] > held[room][figure]
    }
    assert over == {}


def test_no_file_is_longer_than_a_reader_bears() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert [str(path) for path, n in lines.items() if n > MOST_LINES_OF_A_FILE] == []


def test_lowering_never_raises() -> None:
    held = {"a": dict.fromkeys(FIGURES, 5), "gone": dict.fromkeys(FIGURES, 1)}
    now = {"a": {"lines": 4, "files": 9, "classes": 5, "chain": 1}}
    assert lowered(held, now) == {"a": {"lines": 4, "files": 5, "classes": 5, "chain": 1}}


if __name__ == "__main__":
    held = budget() if BUDGET.exists() else measured()
    text = table(lowered(held, measured()))
    if "--lower" in sys.argv:
        BUDGET.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
