"""A layer, or a piece of one, as the text of an `nn.Module` class.

Two layers that compute the same give the same text, whatever they are called in the model: local
names come from the layer's own modules and operators, never from the whole graph. That is how
identical layers come to share one class.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import fx, nn

from atom.graph.digest import tensor_bytes
from atom.graph.generate.expressions import TRACE_DEVICE, literal
from atom.graph.generate.python_text import (
    BODY,
    INDENT,
    LINE_LENGTH,
    assignment,
    identifier,
    returned,
    signature,
    unique,
)
from atom.graph.generate.statements import Statements, input_shapes
from atom.graph.layers import Layer
from atom.graph.traced import Constant, Graph, is_getitem, repeats, with_nested

CHECKPOINT = "checkpoint"
"""What the source calls `torch.utils.checkpoint.checkpoint`."""

_NUMBERED_BY_TORCH = re.compile(r"^lifted_tensor_\d+$")
"""Tensors that forward makes from numbers: counted over the whole model, so not named so here."""

_FEW_ELEMENTS = 16
_PLAIN_DTYPES = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
"""Constants of these, if small, are written as numbers."""

_RESERVED_ATTRIBUTES = {"device", *dir(nn.Module())}


class LayerText:
    """The printed class of one layer.

    `borrowed` parameters are not the class's own: an earlier layer of the same sub-model holds
    them (tied weights), and `forward` takes them as its last arguments.
    """

    def __init__(self, graph: Graph, layer: Layer, borrowed: frozenset[str]) -> None:
        self._graph = graph
        self._layer = layer
        self._whole = frozenset(layer.whole)
        self._text = Statements(graph, layer, layer.calls, layer.outputs)
        self._attributes = set(_RESERVED_ATTRIBUTES)
        self._methods: dict[str, tuple[str, list[str]]] = {}
        """Of what backward computes again: name and lines, by what it computes."""
        self.own: list[tuple[str, str]] = []
        """(attribute, name in the layout), in order of first use."""
        self.borrowed: list[str] = []
        """Names in the layout, in the order of forward's last arguments."""
        self._head: list[str] = []
        self._arguments: list[str] = []
        self._name_parameters(borrowed)
        self._name_constants()
        self._name_inputs()
        self.lines = [
            f"{INDENT}def __init__(self, device: torch.device) -> None:",
            f"{BODY}super().__init__()",
            *self._head,
            "",
            *self._forward(),
        ]
        for _, lines in self._methods.values():
            self.lines += ["", *lines]

    @property
    def key(self) -> str:
        """Equal for layers that may share a class."""
        return "\n".join([self._layer.kind, *self.lines])

    def _name_parameters(self, borrowed: frozenset[str]) -> None:
        arguments = []
        for node in self._layer.parameters:
            name = self._graph.parameters[node]
            wanted = identifier(self._text.relative(name))
            if name in borrowed:
                self.borrowed.append(name)
                arguments.append(self._text.take(node, wanted))
                continue
            attribute = unique(wanted, self._attributes)
            self._text.names[node] = f"self.{attribute}"
            self.own.append((attribute, name))
            shape = [str(extent) for extent in self._graph.specs[node].shape]
            frozen = ["trains=False"] if name in self._graph.frozen else []
            self._head += assignment([f"self.{attribute}"], "weight", [*shape, *frozen])
        self._borrowed_arguments = arguments

    def _name_constants(self) -> None:
        if _names_device(self._layer.calls):
            self._head.append(f"{BODY}self.device = device")
        for node in self._layer.constants:
            constant = self._graph.constants[node]
            wanted = _NUMBERED_BY_TORCH.sub("tensor", self._text.relative(constant.name))
            attribute = unique(identifier(wanted), self._attributes)
            self._text.names[node] = f"self.{attribute}"
            self._head += _constant_lines(attribute, constant)

    def _name_inputs(self) -> None:
        for node in self._layer.inputs:
            self._arguments.append(self._text.take(node, self._input_name(node)))
        self._arguments += self._borrowed_arguments

    def _input_name(self, node: fx.Node) -> str:
        """The batch's word, or what an earlier piece of the same layer calls it, or x."""
        if node in self._graph.batch:
            return identifier(self._graph.batch[node])
        maker = node.args[0] if is_getitem(node) else node
        if isinstance(maker, fx.Node) and maker in self._whole:
            name = self._text.called_after(maker)
            return name if maker is node else f"{name}_{node.args[1]}"
        return "x"

    def _forward(self) -> Iterator[str]:
        yield from signature("forward", ["self", *self._arguments])
        yield from input_shapes(self._graph, self._layer.inputs, self._arguments)
        for span, run in groupby(self._layer.calls, self._graph.span_of.get):
            calls = list(run)
            yield from self._text.lines(calls, BODY) if span is None else self._checkpoint(calls)
        yield from returned([self._text.names[node] for node in self._layer.outputs])

    def _checkpoint(self, calls: Sequence[fx.Node]) -> Iterator[str]:
        """`(loss,) = checkpoint(self.recomputed, x, …)`: the calls are a method."""
        text, names = _RecomputedText(self._graph, self._layer, calls, self._text.names), self._text
        if text.key not in self._methods:
            name = unique("recomputed", self._attributes)
            self._methods[text.key] = (name, text.lines(name))
        arguments = [
            f"self.{self._methods[text.key][0]}",
            *(names.names[node] for node in text.takes),
            "use_reentrant=False",
            *([] if text.is_random else ["preserve_rng_state=False"]),
        ]
        targets = [names.take(node, names.called_after(node)) for node in text.gives]
        yield from assignment(
            [f"({targets[0]},)"] if len(targets) == 1 else targets, CHECKPOINT, arguments
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


class _RecomputedText:
    """What backward computes again: the method for one span of calls, run under a checkpoint.

    Its names come from its own calls and arguments, so spans that compute the same (chunks of a
    loss) are one method, called several times. `reached` says which values are the class's
    attributes.
    """

    def __init__(
        self, graph: Graph, layer: Layer, calls: Sequence[fx.Node], reached: dict[fx.Node, str]
    ) -> None:
        inside = set(calls)
        self.gives = [node for node in calls if _is_used_outside(node, graph, inside)]
        read = dict.fromkeys(
            node
            for call in calls
            for node in call.all_input_nodes
            if node not in inside and node.op != "get_attr"
        )
        passed = [node for node in read if not reached[node].startswith("self.")]
        values = [node for node in passed if node not in graph.parameters]
        self.takes = [*values, *(node for node in passed if node in graph.parameters)]
        """Values, then parameters that the class has not itself."""
        self.is_random = not all(repeats(inner) for call in calls for inner in with_nested(call))
        text = Statements(graph, layer, calls, self.gives)
        text.names.update({node: reached[node] for node in read if node not in passed})
        arguments = [text.take(node, _wanted(graph, text, node)) for node in self.takes]
        self._arguments = arguments
        self._body = [
            f'{BODY}"""Backward computes this again."""',
            *input_shapes(graph, values, arguments),
            *text.lines(calls, BODY),
            *returned([text.names[node] for node in self.gives]),
        ]

    @property
    def key(self) -> str:
        """Equal for spans that may share a method."""
        return "\n".join([*self._arguments, *self._body])

    def lines(self, name: str) -> list[str]:
        """The method's, under this name."""
        return [*signature(name, ["self", *self._arguments]), *self._body]


def _wanted(graph: Graph, text: Statements, node: fx.Node) -> str:
    if node in graph.parameters:
        return identifier(text.relative(graph.parameters[node]))
    if node in graph.batch:
        return identifier(graph.batch[node])
    return text.called_after(node.all_input_nodes[0] if is_getitem(node) else node)


def _is_used_outside(node: fx.Node, graph: Graph, inside: set[fx.Node]) -> bool:
    return node is graph.loss or any(u in graph.call_set and u not in inside for u in node.users)


def _constant_lines(attribute: str, constant: Constant) -> Iterator[str]:
    """The assignment of a constant's values in `__init__`; exact to the bit."""
    tensor = constant.tensor
    if tensor.numel() <= _FEW_ELEMENTS and _reads_back(tensor):
        arguments = [literal(tensor.tolist(), {}), f"dtype={tensor.dtype}", "device=device"]
        yield from assignment([f"self.{attribute}"], "torch.tensor", arguments)
        return
    text = base64.b64encode(tensor_bytes(tensor)).decode()
    kind = [str(tensor.dtype), str(list(tensor.shape)), "device"]
    width = LINE_LENGTH - len(BODY) - len(INDENT) - len('"",')
    if len(text) <= width:
        yield from assignment([f"self.{attribute}"], "constant", [f'"{text}"', *kind])
        return
    yield f"{BODY}self.{attribute} = constant("
    for start in range(0, len(text), width):
        comma = "," if start + width >= len(text) else ""
        yield f'{BODY}{INDENT}"{text[start : start + width]}"{comma}'
    yield from (f"{BODY}{INDENT}{argument}," for argument in kind)
    yield f"{BODY})"


def _reads_back(tensor: torch.Tensor) -> bool:
    """Whether Python's literals for the elements give the same elements."""
    plain = tensor.dtype in _PLAIN_DTYPES or not tensor.dtype.is_floating_point
    return plain and not tensor.is_complex() and bool(torch.isfinite(tensor).all())
