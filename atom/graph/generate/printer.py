"""A layer, or a piece of one, as the text of an `nn.Module` class.

Every call is printed as the operator that was traced, so the class computes what the graph says.
Two layers that compute the same give the same text, whatever they are called in the model: local
names come from the layer's own modules and operators, never from the whole graph. That is how
identical layers come to share one class.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import fx, nn

from atom.graph.generate.python_text import (
    BODY,
    INDENT,
    assignment,
    identifier,
    remark,
    returned,
    signature,
    unique,
)
from atom.graph.ir import ValueSpec
from atom.graph.layers import Layer
from atom.graph.traced import (
    FUNCTIONS,
    Graph,
    is_getitem,
    is_region,
    layer_path,
    nested_graph,
    operator_text,
    repeats,
    tensor_bytes,
    with_nested,
)

TRACE_DEVICE = torch.device("cpu")
"""Models are traced on this device; in the program it stands for whichever device runs it."""

RESERVED = frozenset(
    "self torch nn aten checkpoint weight constants device functions float".split()  # noqa: SIM905
)
"""What the source itself uses."""

_KEEP_THE_NAME = {
    "add", "clone", "contiguous", "div", "flatten", "masked_fill", "mul", "permute", "reshape",
    "squeeze", "sub", "t", "to", "transpose", "unsqueeze", "view",
}  # fmt: skip
"""Operators after which a value is still what its name says; and those that work in place."""

_NUMBERED_BY_TORCH = re.compile(r"^lifted_tensor_\d+$")
"""Tensors that forward makes from numbers: counted over the whole model, so not named so here."""

_RESERVED_ATTRIBUTES = frozenset(dir(nn.Module()))


class LayerText:
    """The printed class of one layer: `lines`, without its head."""

    def __init__(self, graph: Graph, layer: Layer) -> None:
        self.graph = graph
        self.layer = layer
        self.parameters: list[tuple[str, str]] = []
        """(attribute, name in the layout), in order of first use."""
        self.constants: dict[str, torch.Tensor] = {}
        """By what the class calls them: the beginning of a hash of their values."""
        self.names: dict[fx.Node, str] = {}
        """How the class reaches parameters and constants: `self.weight`."""
        self._attributes = set(_RESERVED_ATTRIBUTES)
        self._methods: dict[str, tuple[str, list[str]]] = {}
        """Name and lines of those that forward calls, by what they compute."""
        made = [*self._parameter_lines(), *self._constant_lines()]
        forward = _Method(self, layer.calls, layer.inputs, layer.outputs, layer.whole).lines(
            "forward"
        )
        self.lines = [
            f"{INDENT}def __init__(self) -> None:",
            f"{BODY}super().__init__()",
            *made,
            "",
            *forward,
        ]
        for _, lines in self._methods.values():
            self.lines += ["", *lines]

    def relative(self, path: str) -> str:
        """A path in the model as seen from the layer."""
        return path.removeprefix(f"{self.layer.prefix}.") if self.layer.prefix else path

    def method(self, wanted: str, body: "_Method") -> str:
        """The name of a method that computes this; methods that compute the same are one."""
        key = "\n".join(body.lines(""))
        if key not in self._methods:
            name = self._attribute(wanted)
            self._methods[key] = name, body.lines(name)
        return self._methods[key][0]

    def _parameter_lines(self) -> Iterator[str]:
        for node in self.layer.parameters:
            name = self.graph.parameters[node]
            attribute = self._attribute(identifier(self.relative(name)))
            self.names[node] = f"self.{attribute}"
            self.parameters.append((attribute, name))
            shape = [str(extent) for extent in self.graph.specs[node].shape]
            frozen = ["trains=False"] if name in self.graph.frozen else []
            yield from assignment([self.names[node]], "weight", [*shape, *frozen])

    def _constant_lines(self) -> Iterator[str]:
        for node in self.layer.constants:
            constant = self.graph.constants[node]
            tensor = constant.tensor.clone()
            kind = f"{tensor.dtype}{list(tensor.shape)}{tensor.stride()}"
            key = hashlib.sha256(kind.encode() + tensor_bytes(tensor)).hexdigest()[:32]
            self.constants[key] = tensor
            wanted = _NUMBERED_BY_TORCH.sub("tensor", self.relative(constant.name))
            self.names[node] = f"self.{self._attribute(identifier(wanted))}"
            shape = _shape_text(self.graph.specs[node], self.graph)
            yield f'{BODY}{self.names[node]} = constants["{key}"]  # {shape}'

    def _attribute(self, wanted: str) -> str:
        name = unique(wanted, self._attributes)
        self._attributes.add(name)
        return name


class _Method:
    """Calls of a layer as one method: its `forward`; or what backward computes again, run under a
    checkpoint; or the nested graph of a region (`no_grad`, autocast).

    A local name is free again once nobody reads its value: whatever is called alike then takes the
    name over, and with it goes the memory.
    """

    def __init__(
        self,
        owner: LayerText,
        calls: Sequence[fx.Node],
        takes: Sequence[fx.Node],
        gives: Sequence[fx.Node],
        whole: Sequence[fx.Node] = (),
    ) -> None:
        self._owner = owner
        self._graph = owner.graph
        self._alone = _alone_in_module(whole or calls)
        self._whole = frozenset(whole)
        self._position = {node: position for position, node in enumerate(calls)}
        self._gives = frozenset(gives)
        self._names = dict(owner.names)
        self._read_until: dict[str, float] = dict.fromkeys(RESERVED, math.inf)
        """Local names → position of the call that last reads what they hold."""
        self._now = -1
        self._arguments = [self._take(node, self._argument_name(node)) for node in takes]
        self._body = [
            *remark(f"{self._names[node]}: {_value_text(node, self._graph)}" for node in takes),
            *self._statements(calls),
            *returned([self._names[node] for node in gives]),
        ]

    def lines(self, name: str) -> list[str]:
        return [*signature(name, self._arguments), *self._body]

    # ---- names

    def _take(self, node: fx.Node, wanted: str) -> str:
        """A local name for a value, like `wanted`, under which nothing is that is still read."""
        alive = {name for name, until in self._read_until.items() if until > self._now}
        name = self._names[node] = unique(wanted, alive)
        self._read_until[name] = self._last_read(node)
        return name

    def _last_read(self, node: fx.Node) -> float:
        reads = [self._position[user] for user in node.users if user in self._position]
        return math.inf if node in self._gives else max(reads, default=-1)

    def _argument_name(self, node: fx.Node) -> str:
        """The batch's word, or what an earlier piece of the same layer calls it, or x."""
        if node in self._graph.batch:
            return identifier(self._graph.batch[node])
        maker = node.args[0] if is_getitem(node) else node
        if not self._whole and isinstance(maker, fx.Node):
            return self._called_after(maker)
        if isinstance(maker, fx.Node) and maker in self._whole:
            name = self._called_after(maker)
            return name if maker is node else f"{name}_{node.args[1]}"
        return "x"

    def _called_after(self, node: fx.Node) -> str:
        """The name of what made a value: its module, or its operator."""
        path = self._alone.get(node, "")
        path = "" if path == self._owner.layer.prefix else self._owner.relative(path)
        return identifier(path or str(getattr(node.target, "_opname", "value")))

    def _result_name(self, node: fx.Node) -> str:
        """The first argument's name, where nobody reads that after this call and no module gives
        a better one: `x = aten.add.Tensor(x, projection)`."""
        first = next(iter(node.args), None)
        if node not in self._alone and isinstance(first, fx.Node) and _alike(first, node):
            name = self._names.get(first, "self.")
            if self._read_until.get(name, math.inf) <= self._now:
                return name
        return self._called_after(node)

    # ---- statements

    def _statements(self, calls: Sequence[fx.Node]) -> Iterator[str]:
        spans = self._graph.span_of if self._whole else {}
        for span, run in groupby(calls, spans.get):
            nodes = list(run)
            if span is not None:
                yield from self._checkpoint(nodes)
                continue
            for node in nodes:
                self._now = self._position[node]
                if is_region(node):
                    yield from self._region(node)
                elif not is_getitem(node):
                    yield from self._call(node)

    def _call(self, node: fx.Node) -> Iterator[str]:
        target = node.target
        assert isinstance(target, torch._ops.OpOverload), f"not an operator: {target}"
        function = str(target) if target.namespace == "aten" else f"torch.ops.{target}"
        if target.namespace == FUNCTIONS:
            function = f'functions["{operator_text(target)}"]'
        arguments = [literal(value, self._names) for value in node.args]
        arguments += [f"{key}={literal(value, self._names)}" for key, value in node.kwargs.items()]
        picks = [user for user in node.users if is_getitem(user) and user in self._position]
        if picks:
            targets = self._unpacked(node, picks, len(node.meta["val"]))
        else:
            targets = [self._take(node, self._result_name(node))]
        yield from assignment(targets, function, arguments, _value_text(node, self._graph))

    def _unpacked(self, node: fx.Node, picks: Iterable[fx.Node], count: int) -> list[str]:
        """`q, k, v = aten.split.Tensor(…)`: a local name per result, `_` for what nobody reads."""
        targets = ["_"] * count
        for pick in picks:
            index = int(str(pick.args[1])) % count
            if targets[index] == "_":
                targets[index] = self._take(pick, f"{self._called_after(node)}_{index}")
            else:
                name = self._names[pick] = targets[index]
                self._read_until[name] = max(self._read_until[name], self._last_read(pick))
        return [f"({targets[0]},)"] if count == 1 else targets or ["_"]

    def _region(self, node: fx.Node) -> Iterator[str]:
        """`with torch.no_grad():` and `with torch.autocast(…):`, its nested graph as a method."""
        settings = [value for value in node.args if not isinstance(value, fx.Node)]
        nested, *given = [value for value in node.args if isinstance(value, fx.Node)]
        nodes = list(nested_graph(nested).graph.nodes)
        calls = [n for n in nodes if n.op == "call_function" and "_assert_" not in str(n.target)]
        takes = [n for n in nodes if n.op == "placeholder"]
        gives: Any = nodes[-1].args[0]
        method = self._owner.method("region", _Method(self._owner, calls, takes, gives))
        arguments = [self._names[value] for value in given]
        picks = [user for user in node.users if is_getitem(user)]
        targets = self._unpacked(node, picks, len(gives))
        yield f"{BODY}with {_context(settings)}:"
        yield from assignment(targets, f"self.{method}", arguments, indent=BODY + INDENT)

    def _checkpoint(self, calls: Sequence[fx.Node]) -> Iterator[str]:
        """`(loss,) = checkpoint(self.recomputed, x, …)`: the calls are a method."""
        inside = set(calls)
        gives = [node for node in calls if _is_used_outside(node, self._graph, inside)]
        read = dict.fromkeys(node for call in calls for node in call.all_input_nodes)
        takes = [n for n in read if n not in inside and n.op != "get_attr"]
        takes = [n for n in takes if n not in self._owner.names]
        body = _Method(self._owner, calls, takes, gives)
        again = all(repeats(inner) for call in calls for inner in with_nested(call))
        arguments = [
            f"self.{self._owner.method('recomputed', body)}",
            *(self._names[node] for node in takes),
            "use_reentrant=False",
            *(["preserve_rng_state=False"] if again else []),
        ]
        self._now = self._position[calls[-1]]
        targets = [self._take(node, self._called_after(node)) for node in gives]
        targets = [f"({targets[0]},)"] if len(targets) == 1 else targets
        yield from assignment(targets, "checkpoint", arguments)


def literal(value: Any, names: Mapping[fx.Node, str]) -> str:
    """An argument: a local name, or a Python literal that gives the same value."""
    match value:
        case fx.Node():
            return names[value]
        case list() | tuple():
            return "[" + ", ".join(literal(item, names) for item in value) + "]"
        case torch.device():
            return "device" if value == TRACE_DEVICE else f'torch.device("{value}")'
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case bool() | int() | float() | complex() | str() | None:
            return repr(value)
        case torch.dtype() | torch.memory_format() | torch.layout():
            return repr(value)
    raise AssertionError(f"no literal for {value!r}")


def _value_text(node: fx.Node, graph: Graph) -> str:
    """`[2, 16]`, with the dtype where it is not the usual one, `3 x [2, 16]` of several."""
    value = node.meta.get("val")
    values = [value] if isinstance(value, torch.Tensor) else value or ()
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    texts = {_shape_text(ValueSpec(tuple(v.shape), v.dtype), graph) for v in tensors}
    times = f"{len(tensors)} x " if tensors and value is not tensors[0] else ""
    return f"{times}{texts.pop()}" if len(texts) == 1 else ""


def _shape_text(spec: ValueSpec, graph: Graph) -> str:
    dtype = str(spec.dtype).removeprefix("torch.")
    usual = spec.dtype is graph.parameter_dtype
    return str(list(spec.shape)) if usual else f"{dtype} {list(spec.shape)}"


def _context(settings: Sequence[object]) -> str:
    if len(settings) == 1:
        return f"torch.set_grad_enabled({settings[0]})"
    device_type, dtype, enabled, cache_enabled = settings
    return (
        f'torch.autocast("{device_type}", dtype={dtype}, enabled={enabled}, '
        f"cache_enabled={cache_enabled})"
    )


def _alone_in_module(calls: Iterable[fx.Node]) -> dict[fx.Node, str]:
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
    operator = str(getattr(after.target, "_opname", " "))
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    keeps_name = operator in _KEEP_THE_NAME or operator[-1] == "_"
    return keeps_name and old.numel() == new.numel()


def _is_used_outside(node: fx.Node, graph: Graph, inside: set[fx.Node]) -> bool:
    return node is graph.loss or any(u in graph.call_set and u not in inside for u in node.users)
