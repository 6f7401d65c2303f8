"""The device's code without one of its waits, or one of its buffers: found in its source.

Device's code is what of `atom/swap` imports the device. A mutant does without

* a wait: what is called as in `WAITS` or handed on to be called, a record of an event among them;
* second buffers: a comprehension that allocates one for each slot has them share one.

As a program it reads numbers of mutants, a list in JSON each line, plays the stories without what
they are without, and answers what went wrong. Each line has a process of its own: nothing that
breaks there reaches the tests.
"""

import ast
import gc
import importlib
import inspect
import json
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from ordered_story import TELLING, Case, Told
from stream_order import Order

from atom.swap import device

FOLDER = Path(device.__file__).parent
WAITS = re.compile(r"(wait|record|synchronize)(_\w+)?|drain|result|ready|settle|landed")
ALLOCATES = {"slot_memory", "host_memory"}
IGNORED = "(lambda *given, **named: None)"
PATIENCE_S = 100.0


@dataclass(frozen=True)
class Mutant:
    path: Path
    function: str
    """Qualified, outermost first: what is exchanged."""
    tree: ast.Module
    node: ast.expr
    """In it: what is left out."""

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
    """For as long as the process lives: everybody who imported a function has it without."""
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


def found_without(chosen: Sequence[Mutant], told: Sequence[Told]) -> str:
    """The first that goes wrong; "" if nothing does. `told`: of each of `TELLING`, by a CPU."""
    found = _forked(partial(_play, chosen, told))
    return f"no end after {PATIENCE_S} s" if found is None else str(found)


def _forked(work: Callable[[Callable[[object], None]], None]) -> Any:
    """What the work ends a process of its own with; None: it has not in time."""
    hears, tells = multiprocessing.Pipe(duplex=False)

    def end(found: object) -> None:
        tells.send(found)
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=work, args=(end,))
    child.start()
    tells.close()
    found = None
    if hears.poll(PATIENCE_S):
        try:
            found = hears.recv()
        except EOFError:
            child.join()
            found = f"the process ended with {child.exitcode}"
    child.kill()
    child.join()
    return found


def _tell(end: Callable[[object], None]) -> None:
    end([case.told for case in TELLING])


def _play(chosen: Sequence[Mutant], told: Sequence[Told], end: Callable[[object], None]) -> None:
    leave_out(chosen)
    plays = [Case.on_gpu, Case.on_cpu]
    if not any(mutant.path.name == "device.py" for mutant in chosen):
        plays = [Case.on_gpu]
    elif all("CpuDevice" in mutant.function for mutant in chosen):
        plays = [Case.on_cpu]
    try:
        for play in plays:
            for case, expected in zip(TELLING, told, strict=True):
                if play(case, Order(lambda race: end(str(race)))) != expected:
                    end("other numbers")
    except Exception:  # noqa: BLE001 - whatever comes of it
        end(traceback.format_exc())
    end("")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in TELLING:
        assert case.program
    TOLD = _forked(_tell)  # after a backward of ours, autograd would refuse to work in children
    gc.collect()  # no child may unmap host memory of ours: it has its own in the same place
    EVERY = list(mutants())
    for line in sys.stdin:
        found = found_without([EVERY[number] for number in json.loads(line)], TOLD)
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()
