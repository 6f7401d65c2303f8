"""A layer as the text of an `nn.Module` class.

Two layers that compute the same give the same text, whatever they are called in the model: local
names come from the layer's own modules and operators, never from the whole graph. That is how
identical layers come to share one class.
"""

import base64
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import fx, nn

from atom.graph.digest import tensor_bytes
from atom.graph.expressions import TRACE_DEVICE, Expression, expression
from atom.graph.layers import Layer
from atom.graph.traced import (
    Constant,
    Graph,
    is_getitem,
    layer_path,
    nested_graph,
    with_nested,
)

LINE_LENGTH = 100
INDENT = "    "
BODY = INDENT * 2
_FEW_ELEMENTS = 16
_RESERVED_LOCALS = {
    "self", "torch", "F", "abs", "all", "any", "bool", "case", "complex", "filter", "float",
    "format", "hash", "id", "input", "int", "iter", "len", "list", "map", "match", "max", "min",
    "next", "pow", "range", "round", "set", "slice", "sorted", "sum", "tuple", "type", "zip",
}  # fmt: skip
"""Fixed, not asked from `builtins` and `keyword`: every Python version must choose alike."""

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
        self._names: dict[fx.Node, str] = {}
        self._locals = set(_RESERVED_LOCALS)
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
        forward = [*self._statements(layer.calls), self._return()]
        arguments = ", ".join(["self", *self._arguments])
        self.lines = [
            f"{INDENT}def __init__(self, device: torch.device) -> None:",
            f"{BODY}super().__init__()",
            *self._head,
            "",
            f"{INDENT}def forward({arguments}):",
            *(BODY + line if line else line for line in forward),
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
            shape = ", ".join(map(str, self._graph.specs[node].shape))
            frozen = ", trains=False" if name in self._graph.frozen else ""
            self._head.append(f"{BODY}self.{attribute} = weight({shape}{frozen})")
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
            entry = self._graph.batch.get(node)
            self._names[node] = unique(identifier(entry) if entry else "x", self._locals)
            self._arguments.append(self._names[node])
        self._arguments += self._borrowed_arguments

    def _return(self) -> str:
        return f"return {tuple_text([self._names[node] for node in self._layer.outputs])}"

    def _statements(self, calls: Iterable[fx.Node]) -> Iterator[str]:
        calls = list(calls)
        alone = _alone_in_module(calls)
        for node in calls:
            if is_getitem(node):
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                yield from self._region(node)
                continue
            written = expression(node, self._names)
            picks = _picks(node)
            if picks:
                target = self._unpack(node, picks)
            else:
                target = self._names[node] = unique(self._local(node, alone), self._locals)
            yield from statement(target, written, self._comment(node))

    def _region(self, node: fx.Node) -> Iterator[str]:
        """`with torch.no_grad()` and `with torch.autocast(…)`: the nested graph, written out."""
        settings = [a for a in node.args if not isinstance(a, fx.Node)]
        inner, *arguments = [a for a in node.args if isinstance(a, fx.Node)]
        nodes = list(nested_graph(inner).graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self._names[placeholder] = self._names[argument]
        yield f"with {_context(settings)}:"
        calls = [n for n in nodes if n.op == "call_function" and "_assert_" not in str(n.target)]
        for line in self._statements(calls):
            yield INDENT + line
        if not calls:
            yield INDENT + "pass"
        results = nodes[-1].args[0]
        assert isinstance(results, list | tuple)
        for pick in _picks(node):
            result = results[int(pick.args[1])]  # type: ignore[arg-type]
            assert isinstance(result, fx.Node)
            self._names[pick] = self._names[result]

    def _unpack(self, node: fx.Node, picks: Sequence[fx.Node]) -> str:
        """`q, k, v = x.split(…)`: one local name per result, `_` for what nobody reads."""
        count = len(node.meta["val"])
        targets = ["_"] * count
        base = self._local(node, {})
        by_index: dict[int, str] = {}
        for pick in picks:
            index = int(pick.args[1]) % count  # type: ignore[arg-type]
            if index not in by_index:
                by_index[index] = targets[index] = unique(f"{base}_{index}", self._locals)
            self._names[pick] = by_index[index]
        return ", ".join(targets) if count > 1 else f"({targets[0]},)"

    def _local(self, node: fx.Node, alone: dict[fx.Node, str]) -> str:
        path = alone.get(node, "")
        path = "" if path == self._layer.prefix else self._relative(path)
        return identifier(path or str(getattr(node.target, "_opname", "value")))

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
        dtype = str(value.dtype).removeprefix("torch.")
        usual = value.dtype is self._graph.parameter_dtype
        return str(list(value.shape)) if usual else f"{dtype} {list(value.shape)}"


def statement(target: str, written: Expression, comment: str) -> Iterator[str]:
    """One assignment inside a method, broken over lines where it is too long for one."""
    tail = f"  # {comment}" if comment else ""
    whole = f"{target} = {written}{tail}"
    width = LINE_LENGTH - len(BODY) - len(INDENT)
    if len(whole) <= width or not written.arguments:
        yield whole
        return
    yield f"{target} = {written.head}("
    arguments = ", ".join(written.arguments)
    if len(arguments) <= width:
        yield INDENT + arguments
    else:
        yield from (f"{INDENT}{argument}," for argument in written.arguments)
    yield f"){tail}"


def constant_lines(attribute: str, constant: Constant) -> Iterator[str]:
    """The assignment of a constant's values in `__init__`; exact to the bit."""
    tensor = constant.tensor
    values = repr(tensor.tolist()) if tensor.numel() <= _FEW_ELEMENTS else ""
    if values and len(values) < LINE_LENGTH - len(BODY) - len(INDENT) and _reads_back(tensor):
        arguments = (values, f"dtype={tensor.dtype}", "device=device")
        for line in statement(f"self.{attribute}", Expression("torch.tensor", arguments), ""):
            yield BODY + line
        return
    text = base64.b64encode(tensor_bytes(tensor)).decode()
    width = LINE_LENGTH - len(BODY) - len(INDENT) - len('"",')
    yield f"{BODY}self.{attribute} = constant("
    for start in range(0, max(len(text), 1), width):
        comma = "," if start + width >= len(text) else ""
        yield f'{BODY}{INDENT}"{text[start : start + width]}"{comma}'
    yield f"{BODY}{INDENT}{tensor.dtype}, {list(tensor.shape)}, device,"
    yield f"{BODY})"


def _reads_back(tensor: torch.Tensor) -> bool:
    """Whether Python's literals for the elements give the same elements."""
    return not tensor.is_complex() and bool(torch.isfinite(tensor).all())


def tuple_text(names: Sequence[str]) -> str:
    """A tuple of these names, as it is written in an assignment or a return."""
    if len(names) < 2:
        return f"({names[0]},)" if names else "()"
    return ", ".join(names)


def identifier(text: str) -> str:
    """A Python name that resembles `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    if name[0].isdigit():
        name = f"layer_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def unique(base: str, taken: set[str]) -> str:
    """`base`, or with a number if that is taken; the result is taken from now on."""
    name, number = base, 1
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def _picks(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if is_getitem(user)]


def _alone_in_module(calls: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """Calls that are all their module does (a Linear, a LayerNorm) take the module's name."""
    paths: dict[str, list[fx.Node]] = {}
    for node in calls:
        stack = layer_path(node)
        if stack:
            paths.setdefault(stack[-1][0].partition("@")[0], []).append(node)
    return {nodes[0]: path for path, nodes in paths.items() if len(nodes) == 1}


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
