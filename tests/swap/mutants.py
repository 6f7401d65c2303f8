"""The device's code with one of its waits taken out, or one of its buffers: found in its source.

Device's code is what of `atom/swap` imports the device. A mutant does without

* a wait: what is called as in `WAITS` or handed on to be called, a record of an event among them;
* second buffers: a comprehension that allocates one for each slot has them share one.

A mutant is put in the place of its function while a test runs: everybody who imported it has it.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from atom.swap import device

FOLDER = Path(device.__file__).parent
WAITS = re.compile(r"(wait|record|synchronize)(_\w+)?|drain|result|ready|settle|landed")
ALLOCATES = {"slot_memory", "host_memory"}
IGNORED = "(lambda *given, **named: None)"


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    """Qualified, outermost first: what is exchanged."""
    line: int
    text: str
    """Of what is taken out."""
    code: CodeType

    def __str__(self) -> str:
        return f"{self.file}, {self.function}: {self.text}"

    @contextmanager
    def in_place(self) -> Iterator[None]:
        function = _function(self.file, self.function)
        before, function.__code__ = function.__code__, self.code
        try:
            yield
        finally:
            function.__code__ = before


def mutants() -> Iterator[Mutant]:
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "atom.swap.device import" in source or path.name == "device.py":
            for outer, node in _places(ast.parse(source)):
                yield _mutant(path, source, outer, node)


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The outermost function, and in it what is taken out."""
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        for function in owner.body:
            if isinstance(function, ast.FunctionDef):
                outer = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
                calls = {id(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
                for node in ast.walk(function):
                    if _orders(node, calls) or _allocates_each(node):
                        assert isinstance(node, ast.expr)
                        yield outer + function.name, node


def _orders(node: ast.AST, calls: set[int]) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Load) and bool(WAITS.fullmatch(node.attr))
    return isinstance(node, ast.Name) and id(node) in calls and bool(WAITS.fullmatch(node.id))


def _allocates_each(node: ast.AST) -> bool:
    if isinstance(node, ast.DictComp):
        node = node.value
    elif isinstance(node, ast.GeneratorExp | ast.ListComp):
        node = node.elt
    else:
        return False
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(isinstance(each, ast.Attribute) and each.attr in ALLOCATES for each in called)


class _Exchange(ast.NodeTransformer):
    def __init__(self, node: ast.expr) -> None:
        self._at = ast.dump(node, include_attributes=True)

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr) or ast.dump(node, include_attributes=True) != self._at:
            return self.generic_visit(node)
        if isinstance(node, ast.Attribute | ast.Name):
            text = IGNORED
        else:
            text = f"__import__('mutants').sharing({ast.unparse(node)})"
        return ast.copy_location(ast.parse(text, mode="eval").body, node)


def sharing(buffers: Any) -> Any:
    """The largest of them in the place of all."""
    if isinstance(buffers, dict):
        return dict(zip(buffers, sharing(buffers.values()), strict=True))
    made: list[torch.Tensor] = list(buffers)
    return [max(made, key=torch.Tensor.numel)] * len(made) if made else []


def _mutant(path: Path, source: str, outer: str, node: ast.expr) -> Mutant:
    tree = ast.fix_missing_locations(_Exchange(node).visit(ast.parse(source)))
    codes = _codes(compile(tree, str(path), "exec"))
    text = " ".join((ast.get_source_segment(source, node) or "").split())
    return Mutant(path.name, outer, node.lineno, text, codes[outer])


def _codes(code: CodeType) -> dict[str, CodeType]:
    found = {code.co_qualname: code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(_codes(constant))
    return found


def _function(file: str, name: str) -> FunctionType:
    found: Any = importlib.import_module(f"atom.swap.{file.removesuffix('.py')}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    for attribute in ("fget", "func", "__func__"):
        found = getattr(found, attribute, found)
    return inspect.unwrap(found)
