"""What a value is called after: its module, or the operator that makes it."""

from collections.abc import Sequence

import torch
from torch import fx

from atom.graph.traced import layer_path

RESERVED_LOCALS = {
    "self", "torch", "F", "abs", "all", "any", "bool", "case", "checkpoint", "complex", "filter",
    "float", "format", "hash", "id", "input", "int", "iter", "len", "list", "map", "match", "max",
    "min", "next", "pow", "range", "round", "set", "slice", "sorted", "sum", "tuple", "type", "zip",
}  # fmt: skip
"""Fixed, not asked from `builtins` and `keyword`: every Python version must choose alike."""

_KEEP_THE_NAME = {
    "add", "clone", "contiguous", "div", "flatten", "masked_fill", "mul", "permute", "reshape",
    "squeeze", "sub", "t", "to", "transpose", "unsqueeze", "view",
}  # fmt: skip
"""Operators after which a value is still what its name says; and those that work in place."""

_SHORTER = {"scaled_dot_product_attention": "attention", "cross_entropy_loss": "loss"}


def alone_in_module(calls: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """Calls that are all their module does (a Linear, a LayerNorm) take the module's name."""
    paths: dict[str, list[fx.Node]] = {}
    for node in calls:
        stack = layer_path(node)
        if stack:
            paths.setdefault(stack[-1][0].partition("@")[0], []).append(node)
    return {nodes[0]: path for path, nodes in paths.items() if len(nodes) == 1}


def alike(before: fx.Node, after: fx.Node) -> bool:
    """Whether one value is the other in a new form or with new numbers."""
    old, new = before.meta.get("val"), after.meta.get("val")
    operator = operator_name(after)
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    keeps_name = operator in _KEEP_THE_NAME or operator[-1] == "_"
    return keeps_name and old.numel() == new.numel()


def operator_name(node: fx.Node) -> str:
    """`layer_norm`, `attention`: as people write it."""
    name = str(getattr(node.target, "_opname", "value"))
    return _SHORTER.get(name, name)
