"""The calls of one function as its lines, and which local name holds which value."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx

from atom.graph.generate.expressions import expression
from atom.graph.generate.python_text import (
    INDENT,
    assignment,
    identifier,
    remark,
    unique,
)
from atom.graph.ir import ValueSpec
from atom.graph.layers import Layer
from atom.graph.traced import Graph, is_getitem, is_region, layer_path, nested_graph

_RESERVED_LOCALS = {
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


class Statements:
    """Of `calls` of one layer (or a part of it), in a function that gives `results`.

    Whoever prints the function first says in `names` how it reaches parameters, constants and
    arguments, then asks for its lines in order.
    """

    def __init__(
        self, graph: Graph, layer: Layer, calls: Iterable[fx.Node], results: Iterable[fx.Node]
    ) -> None:
        self.names: dict[fx.Node, str] = {}
        self._graph = graph
        self._prefix = layer.prefix
        self._alone = _alone_in_module(layer.whole)
        self._results = frozenset(results)
        self._position = {node: position for position, node in enumerate(calls)}
        self._locals = set(_RESERVED_LOCALS)

    def take(self, node: fx.Node, wanted: str) -> str:
        """A local name for a value, like `wanted`, which nothing else has."""
        self.names[node] = unique(wanted, self._locals)
        return self.names[node]

    def _give_up_names(self, call: fx.Node) -> None:
        """Of results that nobody reads after this call. Whatever is called alike then takes such a
        name over, and the memory that it held until then is free."""
        made = {self.names[n] for n in call.all_input_nodes if n.op == "call_function"}
        for name in made & self._locals:
            held = [other for other, used in self.names.items() if used == name]
            if all(self._ends_at(other, call) for other in held):
                self._locals.discard(name)

    def called_after(self, node: fx.Node) -> str:
        """The name of what made a value: its module, or its operator."""
        path = self._alone.get(node, "")
        path = "" if path == self._prefix else self.relative(path)
        return identifier(path or _operator_name(node))

    def relative(self, path: str) -> str:
        """A path in the model as seen from the layer."""
        inside = self._prefix and path.startswith(self._prefix + ".")
        return path[len(self._prefix) + 1 :] if inside else path

    def lines(self, calls: Iterable[fx.Node], indent: str) -> Iterator[str]:
        for node in calls:
            if is_getitem(node):
                continue
            if is_region(node):
                yield from self._region(node, indent)
                continue
            written = expression(node, self.names)
            picks = _picks(node)
            if picks:
                self._give_up_names(node)
                targets = self._unpack(node, picks)
            else:
                taken_over = self._taken_over(node)
                self._give_up_names(node)
                self._locals.discard(taken_over)
                targets = [self.take(node, taken_over or self.called_after(node))]
            comment = self._comment(node)
            yield from assignment(targets, written.head, written.arguments, comment, indent)

    def _taken_over(self, node: fx.Node) -> str:
        """The first argument's name, where nobody reads that after this call and no module gives
        a better one: `x = x + projection`.
        """
        first = next(iter(node.args), None)
        if node in self._alone or not isinstance(first, fx.Node) or first not in self.names:
            return ""
        if not _alike(first, node):
            return ""
        name = self.names[first]
        held = [other for other, used in self.names.items() if used == name]
        return name if all(self._ends_at(other, node) for other in held) else ""

    def _ends_at(self, value: fx.Node, call: fx.Node) -> bool:
        """Whether this local value has its last reader in `call`."""
        local = value.op == "call_function" or value in self._graph.batch
        if not local or value in self._results or value.graph is not call.graph:
            return False
        here = self._position[call]
        return all(
            user.op == "call_function" and self._position.get(user, -1) <= here
            for user in value.users
        )

    def _region(self, node: fx.Node, indent: str) -> Iterator[str]:
        """`with torch.no_grad()` and `with torch.autocast(…)`: the nested graph, written out."""
        settings = [a for a in node.args if not isinstance(a, fx.Node)]
        inner, *arguments = [a for a in node.args if isinstance(a, fx.Node)]
        nodes = list(nested_graph(inner).graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.names[placeholder] = self.names[argument]
        yield f"{indent}with {_context(settings)}:"
        calls = [n for n in nodes if n.op == "call_function" and "_assert_" not in str(n.target)]
        self._alone.update(_alone_in_module(calls))
        self._position.update({inner: position for position, inner in enumerate(calls)})
        yield from self.lines(calls, indent + INDENT)
        if not calls:
            yield f"{indent}{INDENT}pass"
        results = nodes[-1].args[0]
        assert isinstance(results, list | tuple)
        for pick in _picks(node):
            result = results[int(pick.args[1])]  # type: ignore[arg-type]
            assert isinstance(result, fx.Node)
            self.names[pick] = self.names[result]

    def _unpack(self, node: fx.Node, picks: Sequence[fx.Node]) -> list[str]:
        """`q, k, v = x.split(…)`: one local name per result, `_` for what nobody reads."""
        count = len(node.meta["val"])
        targets = ["_"] * count
        base = self.called_after(node)
        by_index: dict[int, str] = {}
        for pick in picks:
            index = int(pick.args[1]) % count  # type: ignore[arg-type]
            if index not in by_index:
                by_index[index] = targets[index] = unique(f"{base}_{index}", self._locals)
            self.names[pick] = by_index[index]
        return targets if count > 1 else [f"({targets[0]},)"]

    def _comment(self, node: fx.Node) -> str:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            picked = [v for v in value or () if isinstance(v, torch.Tensor)]
            shapes = {tuple(v.shape) for v in picked}
            return f"{len(picked)} x {list(shapes.pop())}" if len(shapes) == 1 else ""
        return shape_text(ValueSpec(tuple(value.shape), value.dtype), self._graph.parameter_dtype)


def input_shapes(
    graph: Graph, inputs: Sequence[fx.Node], arguments: Sequence[str]
) -> Iterator[str]:
    """A comment with the shapes of a function's arguments; borrowed parameters are left out."""
    yield from remark(
        f"{name}: {shape_text(graph.specs[node], graph.parameter_dtype)}"
        for node, name in zip(inputs, arguments, strict=False)
    )


def shape_text(spec: ValueSpec, usual: torch.dtype) -> str:
    """`[2, 16]`, or `int64 [2, 16]` where the dtype is not the usual one."""
    dtype = str(spec.dtype).removeprefix("torch.")
    return str(list(spec.shape)) if spec.dtype is usual else f"{dtype} {list(spec.shape)}"


def _picks(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if is_getitem(user)]


def _context(settings: Sequence[object]) -> str:
    if len(settings) == 1:
        return (
            "torch.no_grad()" if settings[0] is False else f"torch.set_grad_enabled({settings[0]})"
        )
    device_type, dtype, enabled, cache_enabled = settings
    return (
        f'torch.autocast("{device_type}", dtype={dtype}, enabled={enabled}, '
        f"cache_enabled={cache_enabled})"
    )


def _alone_in_module(calls: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """Calls that are all their module does (a Linear, a LayerNorm) take the module's name."""
    paths: dict[str, list[fx.Node]] = {}
    for node in calls:
        stack = layer_path(node)
        if stack:
            paths.setdefault(stack[-1][0].partition("@")[0], []).append(node)
    return {nodes[0]: path for path, nodes in paths.items() if len(nodes) == 1}


def _alike(before: fx.Node, after: fx.Node) -> bool:
    """Whether one value is the other in a new form or with new numbers."""
    old, new = before.meta.get("val"), after.meta.get("val")
    operator = _operator_name(after)
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    keeps_name = operator in _KEEP_THE_NAME or operator[-1] == "_"
    return keeps_name and old.numel() == new.numel()


def _operator_name(node: fx.Node) -> str:
    """`layer_norm`, `attention`: as people write it."""
    name = str(getattr(node.target, "_opname", "value"))
    return _SHORTER.get(name, name)
