"""A layer, or a piece of one, as the text of an `nn.Module` class.

Two layers that compute the same give the same text, whatever they are called in the model: local
names come from the layer's own modules and operators, never from the whole graph. That is how
identical layers come to share one class.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx, nn

from atom.graph.generate.constant_text import constant_lines
from atom.graph.generate.expressions import TRACE_DEVICE, expression
from atom.graph.generate.python_text import (
    BODY,
    INDENT,
    assignment,
    identifier,
    remark,
    returned,
    signature,
    tuple_text,
    unique,
)
from atom.graph.generate.value_names import (
    RESERVED_LOCALS,
    alike,
    alone_in_module,
    operator_name,
)
from atom.graph.ir import ValueSpec
from atom.graph.layers import Layer
from atom.graph.traced import (
    Graph,
    is_getitem,
    nested_graph,
    with_nested,
)

_NUMBERED_BY_TORCH = re.compile(r"^lifted_tensor_\d+$")
"""Tensors that forward makes from numbers: counted over the whole model, so not named so here."""

_RESERVED_ATTRIBUTES = {"device", *dir(nn.Module())}


class LayerText:
    """The printed class of one layer.

    `borrowed` parameters are not the class's own: an earlier layer of the same sub-model holds
    them (tied weights), and `forward` takes them as its last arguments.
    """

    def __init__(self, graph: Graph, layer: Layer, borrowed: frozenset[str]) -> None:
        self._graph = graph
        self._layer = layer
        self._alone = alone_in_module(layer.whole)
        self._whole = frozenset(layer.whole)
        self._results = frozenset(layer.outputs)
        self._position: dict[fx.Node, int] = {}
        self._names: dict[fx.Node, str] = {}
        self._locals = set(RESERVED_LOCALS)
        self._attributes = set(_RESERVED_ATTRIBUTES)
        self.own: list[tuple[str, str]] = []
        """(attribute, name in the layout), in order of first use."""
        self.borrowed: list[str] = []
        """Names in the layout, in the order of forward's last arguments."""
        self._head: list[str] = []
        self._arguments: list[str] = []
        self._name_parameters(borrowed)
        self._name_constants()
        self._name_inputs()
        forward = [
            *signature("forward", ["self", *self._arguments]),
            *input_shapes(graph, layer.inputs, self._arguments),
            *self._statements(layer.calls, BODY),
            *returned([self._names[node] for node in layer.outputs]),
        ]
        self.lines = [
            f"{INDENT}def __init__(self, device: torch.device) -> None:",
            f"{BODY}super().__init__()",
            *self._head,
            "",
            *forward,
        ]

    @property
    def key(self) -> str:
        """Equal for layers that may share a class."""
        return "\n".join([self._layer.kind, *self.lines])

    def _name_parameters(self, borrowed: frozenset[str]) -> None:
        arguments = []
        for node in self._layer.parameters:
            name = self._graph.parameters[node]
            wanted = identifier(self._relative(name))
            if name in borrowed:
                self._names[node] = unique(wanted, self._locals)
                self.borrowed.append(name)
                arguments.append(self._names[node])
                continue
            attribute = unique(wanted, self._attributes)
            self._names[node] = f"self.{attribute}"
            self.own.append((attribute, name))
            shape = [str(extent) for extent in self._graph.specs[node].shape]
            frozen = ["trains=False"] if name in self._graph.frozen else []
            self._head += assignment([self._names[node]], "weight", [*shape, *frozen])
        self._borrowed_arguments = arguments

    def _name_constants(self) -> None:
        if _names_device(self._layer.calls):
            self._head.append(f"{BODY}self.device = device")
        for node in self._layer.constants:
            constant = self._graph.constants[node]
            wanted = _NUMBERED_BY_TORCH.sub("tensor", self._relative(constant.name))
            attribute = unique(identifier(wanted), self._attributes)
            self._names[node] = f"self.{attribute}"
            self._head += constant_lines(attribute, constant)

    def _name_inputs(self) -> None:
        for node in self._layer.inputs:
            self._names[node] = unique(self._input_name(node), self._locals)
            self._arguments.append(self._names[node])
        self._arguments += self._borrowed_arguments

    def _input_name(self, node: fx.Node) -> str:
        """The batch's word, or what an earlier piece of the same layer calls it, or x."""
        if node in self._graph.batch:
            return identifier(self._graph.batch[node])
        maker = node.args[0] if is_getitem(node) else node
        if isinstance(maker, fx.Node) and maker in self._whole:
            name = self._local(maker)
            return name if maker is node else f"{name}_{node.args[1]}"
        return "x"

    def _statements(self, calls: Iterable[fx.Node], indent: str) -> Iterator[str]:
        calls = list(calls)
        self._position.update({node: position for position, node in enumerate(calls)})
        for node in calls:
            if is_getitem(node):
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                yield from self._region(node, indent)
                continue
            written = expression(node, self._names)
            picks = _picks(node)
            if picks:
                targets = self._unpack(node, picks)
            else:
                name = self._taken_over(node) or unique(self._local(node), self._locals)
                self._names[node] = name
                targets = [name]
            comment = self._comment(node)
            yield from assignment(targets, written.head, written.arguments, comment, indent)

    def _taken_over(self, node: fx.Node) -> str:
        """The first argument's name, where nobody reads that after this call and no module gives
        a better one: `x = x + projection`. (A local name holds its memory until forward returns.)
        """
        first = next(iter(node.args), None)
        if node in self._alone or not isinstance(first, fx.Node) or first not in self._names:
            return ""
        if not alike(first, node):
            return ""
        name = self._names[first]
        held = [other for other, used in self._names.items() if used == name]
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
            self._names[placeholder] = self._names[argument]
        yield f"{indent}with {_context(settings)}:"
        calls = [n for n in nodes if n.op == "call_function" and "_assert_" not in str(n.target)]
        self._alone.update(alone_in_module(calls))
        yield from self._statements(calls, indent + INDENT)
        if not calls:
            yield f"{indent}{INDENT}pass"
        results = nodes[-1].args[0]
        assert isinstance(results, list | tuple)
        for pick in _picks(node):
            result = results[int(pick.args[1])]  # type: ignore[arg-type]
            assert isinstance(result, fx.Node)
            self._names[pick] = self._names[result]

    def _unpack(self, node: fx.Node, picks: Sequence[fx.Node]) -> list[str]:
        """`q, k, v = x.split(…)`: one local name per result, `_` for what nobody reads."""
        count = len(node.meta["val"])
        targets = ["_"] * count
        base = self._local(node)
        by_index: dict[int, str] = {}
        for pick in picks:
            index = int(pick.args[1]) % count  # type: ignore[arg-type]
            if index not in by_index:
                by_index[index] = targets[index] = unique(f"{base}_{index}", self._locals)
            self._names[pick] = by_index[index]
        return targets if count > 1 else [tuple_text(targets)]

    def _local(self, node: fx.Node) -> str:
        path = self._alone.get(node, "")
        path = "" if path == self._layer.prefix else self._relative(path)
        return identifier(path or operator_name(node))

    def _relative(self, path: str) -> str:
        prefix = self._layer.prefix
        inside = prefix and path.startswith(prefix + ".")
        return path[len(prefix) + 1 :] if inside else path

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
    """A comment with the shapes of `forward`'s arguments; borrowed parameters are left out."""
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


def _names_device(calls: Iterable[fx.Node]) -> bool:
    """Whether a call makes its result on the tracing device, nested graphs included."""
    return any(
        value == TRACE_DEVICE
        for call in calls
        for node in with_nested(call)
        for value in (*node.args, *node.kwargs.values())
        if isinstance(value, torch.device)
    )
