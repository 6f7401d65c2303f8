"""Every test file can be run by itself: its imports are then on the path."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.py"))
PLACES = defaultdict[str, set[Path]](set)
for file in FILES:
    PLACES[file.stem].add(file.parent)


def imported(file: Path) -> Iterator[str]:
    """First names of the modules that it imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def on_its_path(file: Path) -> set[Path]:
    """Return the folders that pytest adds: the file's own folder, and parents with a conftest."""
    above = (place for place in file.parents if (place / "conftest.py").exists())
    return {file.parent, *above}


def test_what_a_test_imports_is_on_its_path() -> None:
    lost = [
        f"{file.relative_to(HERE)}: {name}"
        for file in FILES
        for name in imported(file)
        if name in PLACES and not PLACES[name] & on_its_path(file)
    ]
    assert not lost
