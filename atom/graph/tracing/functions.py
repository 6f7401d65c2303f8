"""Tracing of custom `torch.autograd.Function`s as single calls that keep their backward.

Tracing would inline the forward of such a function and lose its backward. Therefore each use
becomes a call of an operator that is made for it and that applies the function, both while the
model is traced and when the program runs. Arguments that are not tensors are part of the operator.
"""

import hashlib
import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.library import Library

from atom.graph.traced import FUNCTIONS
from atom.graph.tracing.guards import replaced
from atom.graph.tracing.refusals import Refusal

_REGISTERED = "torch._library.autograd"
"""Module in which torch makes the functions of custom operators that have a registered backward.
Calls of these operators already stay single calls in the graph."""

_PLAIN = (int, float, str, type(None), torch.dtype, torch.Size)
_LIBRARY = Library(FUNCTIONS, "DEF")  # type: ignore[no-untyped-call]
_operators: dict[tuple[type, str], Callable[..., Any]] = {}
_returning_tuples: set[Callable[..., Any]] = set()
"""Operators whose function returns a tuple, even of one tensor."""
_numbers = count(1)


def functions_as_calls() -> AbstractContextManager[None]:
    """Return a context that traces each use of a custom `autograd.Function` as one call.

    Raises:
        ModelError: a function takes anything but tensors and plain values, uses tensors from
            elsewhere, or is PyTorch's own (a module's backward hook, a reentrant checkpoint).
    """
    # Replacing `apply` of Function itself would miss users that hold `Subclass.apply` already. Each
    # call ends in this base class, which torch looks up every time.
    base: Any = torch.autograd.function._SingleLevelFunction
    inside = False

    def apply(function: Any, *args: Any) -> Any:
        nonlocal inside
        if inside or function.__module__ == _REGISTERED:
            return super(base, function).apply(*args)
        inside = True
        try:
            return _call(function, args)
        finally:
            inside = False

    return replaced(base, {"apply": classmethod(apply)})


def _call(function: Any, args: tuple[Any, ...]) -> Any:
    constants = [None if isinstance(arg, torch.Tensor) else (arg,) for arg in args]
    if not all(_is_plain(each[0]) for each in constants if each) or not _is_isolated(function):
        name = f"{function.__module__}.{function.__qualname__}"
        raise Refusal.CUSTOM_BACKWARD.error(function=name)
    key = function, repr(constants)
    if key not in _operators:
        _operators[key] = _operator(function, constants)
    operator = _operators[key]
    results = operator([arg for arg in args if isinstance(arg, torch.Tensor)])
    return tuple(results) if operator in _returning_tuples else results[0]


def _operator(function: Any, constants: list[tuple[Any] | None]) -> Callable[..., Any]:
    def kernel(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        found = function.apply(*(next(given) if each is None else each[0] for each in constants))
        if not isinstance(found, tuple):
            return [found]
        _returning_tuples.add(operator)
        return list(found)

    text = f"{function.__module__}.{function.__qualname__}{constants}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{re.sub(r'[^A-Za-z0-9]+', '_', function.__qualname__)}_{digest}"
    overload = f"number_{next(_numbers)}"  # distinguishes classes of equal name in this process
    _LIBRARY.define(f"{name}.{overload}(Tensor[] tensors) -> Tensor[]")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(f"{name}.{overload}", kernel, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    operator: Callable[..., Any] = getattr(getattr(getattr(torch.ops, FUNCTIONS), name), overload)
    return operator


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) in (tuple, list) else isinstance(value, _PLAIN)


def _is_isolated(function: Any) -> bool:
    """Return True unless a function is PyTorch's own or uses tensors from outside its arguments.

    The graph would not contain tensors and modules from its class, closure or global variables.
    """
    held = list(vars(function).values())
    for name in ("forward", "backward", "setup_context"):
        method = inspect.unwrap(getattr(function, name))
        enclosed = inspect.getclosurevars(method)
        held += [*enclosed.nonlocals.values(), *enclosed.globals.values()]
    has_values = any(isinstance(each, torch.Tensor | nn.Module) for each in held)
    return not has_values and not function.__module__.startswith("torch.")
