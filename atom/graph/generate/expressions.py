"""One aten call as the Python that a person would have written, meaning the same aten call.

A public name is used only where it is a plain binding of the operator (torch.cumsum, a Tensor
method, an arithmetic sign) or a wrapper known to end in exactly this operator; everything else is
called as `torch.ops.…`, which is always the same operator.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import fx

from atom.graph.traced import bind

TRACE_DEVICE = torch.device("cpu")
"""Models are traced on this device; in the program it stands for whichever device runs it."""


@dataclass(frozen=True)
class Expression:
    """`head(arguments)`, or just `head` where there are no arguments to lay out."""

    head: str
    arguments: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.head if self.arguments is None else f"{self.head}({', '.join(self.arguments)})"


Names = Mapping[fx.Node, str]

_SIGNS = {
    "add.Tensor": "+", "sub.Tensor": "-", "mul.Tensor": "*", "div.Tensor": "/",
    "matmul.default": "@", "pow.Tensor_Scalar": "**", "pow.Tensor_Tensor": "**",
    "eq.Tensor": "==", "eq.Scalar": "==", "ne.Tensor": "!=", "ne.Scalar": "!=",
    "lt.Tensor": "<", "lt.Scalar": "<", "le.Tensor": "<=", "le.Scalar": "<=",
    "bitwise_and.Tensor": "&", "bitwise_or.Tensor": "|", "bitwise_not.default": "~",
    "neg.default": "-", "gt.Tensor": ">", "gt.Scalar": ">", "ge.Tensor": ">=", "ge.Scalar": ">=",
}  # fmt: skip

_METHODS = {
    "chunk", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "masked_fill",
    "permute", "repeat", "reshape", "split", "squeeze", "t", "to", "transpose", "type_as",
    "unsqueeze", "view", "view_as", "mean", "sum",
}  # fmt: skip
"""Operators that read better as methods of their first argument."""

_BINDINGS = (type(torch.cos), type(torch.Tensor.cos))
_THIN_WRAPPERS = {"split"}
"""Written in Python, but known to end in the same operator."""

_SIZES_FIRST = {"view", "reshape", "permute", "expand", "repeat"}
"""Methods whose list of sizes is written out: `x.view(2, -1)`."""

_DIMENSION_FIRST = {"unsqueeze", "squeeze"}
"""Methods whose only argument is a dimension: `x.unsqueeze(0)`."""

_TO_THE_END = 2**63 - 1
"""What tracing writes for the missing end of a slice."""

_UNSAID = {"pin_memory": False, "layout": torch.strided}
"""Arguments that tracing fills in and that mean the default on every device."""


def expression(node: fx.Node, names: Names) -> Expression:
    """The Python for one call. `names` gives each argument's local name."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise AssertionError(f"not an operator: {target}")
    if target.namespace == "aten":
        special = _SPECIAL.get(f"{target._opname}.{target._overloadname}")
        written = special(node, names) if special else None
        return written or _sign(node, names) or _public(node, names) or _operator(node, names)
    return _operator(node, names)


def literal(value: Any, names: Names) -> str:
    """An argument: a local name, or a Python literal that gives the same value."""
    match value:
        case fx.Node():
            return names[value]
        case list() | tuple():
            return "[" + ", ".join(literal(item, names) for item in value) + "]"
        case torch.device():
            return "self.device" if value == TRACE_DEVICE else f'torch.device("{value}")'
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case float() | complex():
            return repr(value).replace("e+", "e")  # as formatters write it
        case bool() | int() | None:
            return repr(value)
        case torch.dtype() | torch.memory_format() | torch.layout():
            return repr(value)
    raise AssertionError(f"no literal for {value!r}")


def _arguments(node: fx.Node, names: Names, skip: int = 0) -> tuple[str, ...]:
    """Positional ones first; from the first default, bool or `dim` on, all by their names."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    written, by_name = [], False
    for index, argument in enumerate(schema):
        given = index < len(node.args)
        if not given and argument.name not in node.kwargs:
            continue
        value = node.args[index] if given else node.kwargs[argument.name]
        if _is_default(argument, value) or _UNSAID.get(argument.name, ...) == value:
            by_name = True
            continue
        named = not given or isinstance(value, bool) or argument.name == "dim"
        by_name = by_name or (named and _opname(node) not in _DIMENSION_FIRST)
        if index >= skip:
            text = literal(value, names)
            written.append(f"{argument.name}={text}" if by_name else text)
    return tuple(written)


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, fx.Node):
        return False
    default = argument.default_value
    return type(default) is type(value) and default == value


def _sign(node: fx.Node, names: Names) -> Expression | None:
    sign = _SIGNS.get(_name(node))
    if sign is None or node.kwargs or not isinstance(node.args[0], fx.Node):
        return None
    if len(node.args) == 1:
        return Expression(f"{sign}{literal(node.args[0], names)}")
    left, right = (literal(value, names) for value in node.args)
    return Expression(f"{left}**{right}" if sign == "**" else f"{left} {sign} {right}")


def _public(node: fx.Node, names: Names) -> Expression | None:
    """torch.<op>, a method, or F.<op>, where that is the operator's own binding."""
    name = _opname(node)
    has_self = bool(node.args) and isinstance(node.args[0], fx.Node)
    is_method = has_self and _is_binding(getattr(torch.Tensor, name, None), name)
    if is_method and (name in _METHODS or name[-1] == "_"):
        return _method(node, names)
    if name.startswith("_"):
        return None
    if _is_binding(getattr(torch, name, None), name):
        return Expression(f"torch.{name}", _arguments(node, names))
    if is_method:
        return _method(node, names)
    binding = getattr(torch._C._nn, name, None)
    if binding is not None and getattr(functional, name, None) is binding:
        return Expression(f"F.{name}", _arguments(node, names))
    return None


def _is_binding(function: object, name: str) -> bool:
    """Whether a function calls its operator directly, not through Python that may do more."""
    return name in _THIN_WRAPPERS or isinstance(function, _BINDINGS)


def _method(node: fx.Node, names: Names) -> Expression | None:
    name = _opname(node)
    if name == "to" and "layout" in node.kwargs:
        return None  # to.dtype_layout has no public spelling
    rest = _arguments(node, names, skip=1)
    if name in _SIZES_FIRST and len(rest) == 1 and isinstance(node.args[1], list | tuple):
        rest = tuple(literal(value, names) for value in node.args[1])
    return Expression(f"{literal(node.args[0], names)}.{name}", rest)


def _operator(node: fx.Node, names: Names) -> Expression:
    return Expression(f"torch.ops.{node.target}", _arguments(node, names))


def _wrapper(
    function: str, bound: Mapping[str, Any], names: Names, first: Sequence[str], **defaults: Any
) -> Expression:
    """A function of torch.nn.functional written in Python: the first arguments by their places,
    others by their names where they are not the default."""
    written = [literal(bound[name], names) for name in first]
    for name, default in defaults.items():
        if bound.get(name, default) != default:
            written.append(f"{name}={literal(bound[name], names)}")
    return Expression(f"F.{function}", tuple(written))


def _embedding(node: fx.Node, names: Names) -> Expression | None:
    bound = bind(node)
    if bound.get("sparse") or bound.get("scale_grad_by_freq"):
        return None
    return _wrapper("embedding", bound, names, ("indices", "weight"), padding_idx=-1)


def _functional(node: fx.Node, names: Names) -> Expression | None:
    # The last argument of layer_norm, cudnn_enable, is ignored by the operator.
    arguments = (a for a in _arguments(node, names) if "cudnn_enable" not in a)
    return Expression(f"F.{_opname(node)}", tuple(arguments))


def _dropout(node: fx.Node, names: Names) -> Expression | None:
    bound = bind(node)
    bound = {**bound, "training": bound["train"]}
    return _wrapper("dropout", bound, names, ("input", "p"), training=True)


def _cross_entropy(node: fx.Node, names: Names) -> Expression | None:
    bound = bind(node)
    reduction = ("none", "mean", "sum")[bound.get("reduction", 1)]
    others = {"weight": None, "reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
    bound = {**bound, "reduction": reduction}
    return _wrapper("cross_entropy", bound, names, ("self", "target"), **others)


def _attention(node: fx.Node, names: Names) -> Expression | None:
    others = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None}
    first, bound = ("query", "key", "value"), bind(node)
    function = "scaled_dot_product_attention"
    return _wrapper(function, bound, names, first, **others, enable_gqa=False)


def _clone_of_constant(node: fx.Node, names: Names) -> Expression | None:
    return Expression(f"{literal(node.args[0], names)}.clone", ())


def _rsub(node: fx.Node, names: Names) -> Expression | None:
    if len(node.args) != 2 or node.kwargs:
        return None
    return Expression(f"{literal(node.args[1], names)} - {literal(node.args[0], names)}")


def _slice(node: fx.Node, names: Names) -> Expression | None:
    bound = bind(node)
    dimension, start, end = bound.get("dim", 0), bound.get("start"), bound.get("end")
    if dimension < 0 or bound.get("step", 1) != 1:
        return None
    first = "" if start in (None, 0) else str(start)
    last = "" if end in (None, _TO_THE_END) else str(end)
    index = ", ".join([":"] * dimension + [f"{first}:{last}"])
    return Expression(f"{literal(bound['self'], names)}[{index}]")


_SPECIAL: dict[str, Callable[[fx.Node, Names], Expression | None]] = {
    "embedding.default": _embedding,
    "layer_norm.default": _functional,
    "dropout.default": _dropout,
    "cross_entropy_loss.default": _cross_entropy,
    "scaled_dot_product_attention.default": _attention,
    "lift_fresh_copy.default": _clone_of_constant,
    "rsub.Scalar": _rsub,
    "silu.default": _functional,
    "slice.Tensor": _slice,
}


def _opname(node: fx.Node) -> str:
    return str(node.target._opname)  # type: ignore[union-attr]


def _name(node: fx.Node) -> str:
    return f"{_opname(node)}.{node.target._overloadname}"  # type: ignore[union-attr]
