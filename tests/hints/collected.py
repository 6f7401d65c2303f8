"""All hints of the product, as its source has them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import atom

PACKAGE = Path(atom.__file__).parent
HINT_AT = {
    "refuse": 2,
    "refuse_given": 2,
    "failure": 2,
    "warning": 2,
    "say_error": 1,
    "own_code_errors": 1,
    "read_bounded": 2,
}
"""Function → position of its argument that is a hint. Errors have theirs at position 1."""


def hints() -> dict[str, str]:
    """Return every hint, with its place: text with {…} for what is put in → "file:line"."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for text, line in _in_module(tree):
            found.setdefault(text, f"{path.relative_to(PACKAGE)}:{line}")
    return found


def _in_module(tree: ast.Module) -> Iterator[tuple[str, int]]:
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for name, value in _assigned(node):
                names.setdefault(name, []).append(value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (given := _hint_of(node)) is not None:
            for text in dict.fromkeys(_texts(given, names)):
                yield text, node.lineno


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    target = node.targets[0]
    if isinstance(target, ast.Name):
        yield target.id, node.value
    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        for name, value in zip(target.elts, node.value.elts, strict=True):
            if isinstance(name, ast.Name):
                yield name.id, value


def _hint_of(call: ast.Call) -> ast.expr | None:
    name = getattr(call.func, "id", None) or getattr(call.func, "attr", "")
    at = HINT_AT.get(name, 1 if name.endswith("Error") else None)
    named = next((each.value for each in call.keywords if each.arg in ("hint", "fix")), None)
    if at is None or named is not None:
        return named if at is not None else None
    return call.args[at] if len(call.args) > at else None


def _texts(value: ast.expr, names: dict[str, list[ast.expr]]) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)) if text.strip():
            yield text
        case ast.JoinedStr() | ast.BinOp():
            yield _template(value)
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body, names)
            yield from _texts(other, names)
        case ast.BoolOp(values=values):
            for each in values:
                yield from _texts(each, names)
        case ast.Name(id=name):
            for each in names.get(name, []):
                if not isinstance(each, ast.Name):
                    yield from _texts(each, {})


def _template(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_template, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
    return "{…}"
