"""Mutants of the device code: each lacks one wait, or shares one pair of buffers.

Device code is every module of `atom/swap` that imports the device. A mutant lacks

* a wait: a name that matches `WAITS`, called or passed on to be called; recording an event counts;
* second buffers: a comprehension that allocates one buffer for each slot shares a single one.

Each mutant runs in a separate process, so an error there does not reach the tests.
"""

import ast
import importlib
import inspect
import multiprocessing
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from ordered_story import TELLING, Case, Told
from stream_order import Order

from atom.swap import device

FOLDER = Path(device.__file__).parent
WAITS = re.compile(r"(wait|record|synchronize)(_\w+)?|drain|result|ready|settle")
ALLOCATES = {"slot_memory", "host_memory"}
IGNORED = "(lambda *given, **named: None)"
PATIENCE_S = 100.0


@dataclass(frozen=True)
class Mutant:
    path: Path
    function: str
    """Qualified name of the function to be replaced."""
    tree: ast.Module
    node: ast.expr
    """Node of the function to be left out."""

    def __str__(self) -> str:
        return f"{self.path.name}, {self.function}: {ast.unparse(self.node)}"


def mutants() -> Iterator[Mutant]:
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "atom.swap.device import" in source or path.name == "device.py":
            tree = ast.parse(source)
            for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
                outer = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
                for function in owner.body:
                    if isinstance(function, ast.FunctionDef):
                        for node in _places(function):
                            yield Mutant(path, outer + function.name, tree, node)


def _places(function: ast.FunctionDef) -> Iterator[ast.expr]:
    calls = {n.func for n in ast.walk(function) if isinstance(n, ast.Call)}
    for node in ast.walk(function):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if WAITS.fullmatch(name):
                yield node
            case ast.Name(id=name) if node in calls and WAITS.fullmatch(name):
                yield node
            case ast.DictComp(value=each) | ast.GeneratorExp(elt=each) | ast.ListComp(elt=each):
                called = [n.func for n in ast.walk(each) if isinstance(n, ast.Call)]
                if any(isinstance(n, ast.Attribute) and n.attr in ALLOCATES for n in called):
                    yield node


class _Without(ast.NodeTransformer):
    def __init__(self, nodes: set[ast.expr]) -> None:
        self._nodes = nodes

    def visit(self, node: ast.AST) -> Any:
        if node not in self._nodes:
            return self.generic_visit(node)
        waits = isinstance(node, ast.Attribute | ast.Name)
        text = IGNORED if waits else f"sharing({ast.unparse(node)})"
        return ast.copy_location(ast.parse(text, mode="eval").body, node)


def sharing(buffers: Any) -> Any:
    """The largest of them in the place of all."""
    if isinstance(buffers, dict):
        return dict(zip(buffers, sharing(buffers.values()), strict=True))
    made: list[torch.Tensor] = list(buffers)
    return [max(made, key=torch.Tensor.numel)] * len(made) if made else []


def leave_out(chosen: Sequence[Mutant]) -> None:
    """Replace the functions' code for the rest of the process.

    Modules that imported the functions before also get the new code.
    """
    nodes = {mutant.node for mutant in chosen}
    for mutant in chosen:
        tree = ast.fix_missing_locations(_Without(nodes).visit(mutant.tree))
        function = _function(mutant)
        function.__globals__["sharing"] = sharing
        function.__code__ = _codes(compile(tree, str(mutant.path), "exec"))[mutant.function]


def _codes(code: CodeType) -> dict[str, CodeType]:
    found = {code.co_qualname: code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(_codes(constant))
    return found


def _function(mutant: Mutant) -> FunctionType:
    found: Any = importlib.import_module(f"atom.swap.{mutant.path.stem}")
    for part in mutant.function.split("."):
        found = inspect.getattr_static(found, part)
    for attribute in ("fget", "func", "__func__"):
        found = getattr(found, attribute, found)
    return inspect.unwrap(found)


# --- a process for each ---------------------------------------------------------------------------

# A server forks each process. It has traced all programs but run no backward, after which autograd
# may refuse to work in a fork.
FORKS = multiprocessing.get_context("forkserver")


def found_without(chosen: Sequence[int], told: Sequence[Told]) -> str:
    """Return the first error without these mutants' code; "" if all results are right.

    Args:
        chosen: Numbers of the mutants.
        told: Right result of each case in `TELLING`.
    """
    hears, tells = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_play, args=(chosen, told, tells))
    child.start()
    tells.close()
    try:
        return str(hears.recv()) if hears.poll(PATIENCE_S) else f"no end after {PATIENCE_S} s"
    except EOFError:
        return "the process has ended"
    finally:
        child.kill()
        child.join()


def _play(chosen: Sequence[int], told: Sequence[Told], tells: Connection) -> None:
    def end(found: object) -> None:
        tells.send(str(found))
        os._exit(0)

    torch.set_num_threads(1)
    left_out = [EVERY[number] for number in chosen]
    leave_out(left_out)
    right = dict(zip(TELLING, told, strict=True))
    plays = [(Case.on_gpu, case) for case in TELLING[1:]]
    on_cpu = [(Case.on_cpu, case) for case in TELLING[:2]]
    if all("CpuDevice" in mutant.function for mutant in left_out):
        plays = on_cpu
    elif any(mutant.path.name == "device.py" for mutant in left_out):
        plays += on_cpu
    try:
        for play, case in plays:
            if play(case, Order(end)) != right[case]:
                end("other numbers")
    except Exception:  # noqa: BLE001 - every error counts
        end(traceback.format_exc())
    end("")


EVERY = list(mutants())
for case in TELLING:
    assert case.program
