"""What the rooms promise by name exists, is sorted, and is written down."""

import ast
import importlib
from pathlib import Path

import pytest

ATOM = Path(__file__).parent.parent / "atom"
ROOT = ATOM.parent


def modules_with_exports() -> list[str]:
    found = []
    for path in sorted(ATOM.rglob("*.py")):
        if "__all__" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append(name.removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_exports())
def test_exported_names_exist_and_are_sorted(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(module.__all__)
    assert exported == sorted(exported)
    assert all(hasattr(module, item) for item in exported)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ATOM.rglob("*.py"))
        if path.read_text(encoding="utf-8").strip()
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
