"""A cut graph as Python source: one module per distinct sub-model, and a table of what runs when.

The source is a pure function of the graph and the cut: the same bytes on every peer.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx

from atom.graph.ir import ParameterLayout, SubModel
from atom.graph.layers import Layer
from atom.graph.printer import BODY, INDENT, LINE_LENGTH, LayerText, identifier, tuple_text, unique
from atom.graph.traced import Graph

Cut = Sequence[tuple[int, int]]
"""Sub-models as (first layer, last layer), both included, in order."""

_COLUMN = 24
"""Characters for the values in a row of the table."""

_IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""

_WEIGHT = '''\
def weight(*shape: int{trains}) -> nn.Parameter:
    """A parameter without memory; whoever runs the sub-model puts the values in."""
    empty = torch.empty(shape, dtype={dtype}, device="meta")
    return nn.Parameter(empty{requires_grad})
'''

_CONSTANT = '''\
def constant(
    text: str, dtype: torch.dtype, shape: list[int], device: torch.device
) -> torch.Tensor:
    """A tensor from the base64 of its elements."""
    elements = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)
    return elements.reshape(shape).to(device)
'''


@dataclass
class _Class:
    name: str
    lines: list[str]
    used_by: list[str] = field(default_factory=list)
    own_numel: int = 0


class Source:
    """Generates the source. `text` and `sub_models` are ready after construction."""

    def __init__(self, graph: Graph, layers: Sequence[Layer], cut: Cut) -> None:
        self._graph = graph
        self._layers = layers
        self._classes: dict[str, _Class] = {}
        self._names: set[str] = {"F", "nn", "torch", "base64"}
        self.sub_models = tuple(
            self._sub_model(index, first, last) for index, (first, last) in enumerate(cut)
        )
        self.text = "\n".join(self._file()) + "\n"
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()

    def _sub_model(self, index: int, first: int, last: int) -> SubModel:
        layers = self._layers[first : last + 1]
        if first == last:
            text = LayerText(self._graph, layers[0], frozenset())
            name = self._layer_class(layers[0], text).name
            parameters = text.own
        else:
            name, parameters = self._chain(layers)
        inputs, outputs = crossings(self._graph, layers)
        return SubModel(
            index=index,
            class_name=name,
            parameters=tuple(parameters),
            inputs=tuple(self._graph.value_name(node) for node in inputs),
            outputs=tuple(self._graph.value_name(node) for node in outputs),
            inputs_need_grad=tuple(self._graph.specs[node].needs_grad for node in inputs),
            outputs_need_grad=tuple(self._graph.specs[node].needs_grad for node in outputs),
            first_layer=first,
            last_layer=last,
        )

    def _layer_class(self, layer: Layer, text: LayerText) -> _Class:
        numel = sum(self._graph.layout.by_name[name].numel for _, name in text.own)
        return self._class(text.key, layer.kind, text.lines, layer.name, numel)

    def _class(self, key: str, wanted: str, lines: list[str], user: str, numel: int) -> _Class:
        if key not in self._classes:
            self._classes[key] = _Class(self._class_name(wanted), lines, own_numel=numel)
        found = self._classes[key]
        if user not in found.used_by:
            found.used_by.append(user)
        return found

    def _class_name(self, wanted: str) -> str:
        words = re.findall(r"[A-Za-z0-9]+", wanted)
        base = "".join(word[0].upper() + word[1:] for word in words) or "Layer"
        base = f"Layer{base}" if base[0].isdigit() else base
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}{number}", number + 1
        self._names.add(name)
        return name

    def _chain(self, layers: Sequence[Layer]) -> tuple[str, list[tuple[str, str]]]:
        """The class of a sub-model of several layers: it holds theirs and calls them in turn."""
        chain = _Chain(self._graph, layers)
        for position, layer in enumerate(layers):
            text = LayerText(self._graph, layer, chain.borrowed_by(layer))
            chain.add(position, layer, text, self._layer_class(layer, text).name)
        lines = chain.lines()
        span = f"{layers[0].name} … {layers[-1].name}"
        made = self._class("\n".join(lines), "SubModel", lines, span, 0)
        return made.name, chain.parameters

    def _file(self) -> Iterator[str]:
        body = [line for made in self._classes.values() for line in made.lines]
        yield from self._header()
        yield ""
        if any("= constant(" in line for line in body):
            yield "import base64\n"
        yield _IMPORTS
        yield ""
        dtype, frozen = self._graph.parameter_dtype, bool(self._graph.frozen)
        yield _WEIGHT.format(
            dtype=dtype,
            trains=", trains: bool = True" if frozen else "",
            requires_grad=", requires_grad=trains" if frozen else "",
        )
        if any("= constant(" in line for line in body):
            yield ""
            yield _CONSTANT
        blocks = ["\n".join(self._class_lines(made)) for made in self._classes.values()]
        yield "\n" + "\n\n\n".join(blocks)

    def _class_lines(self, made: _Class) -> Iterator[str]:
        yield f"class {made.name}(nn.Module):"
        numbers = f": {made.own_numel:,} parameters" if made.own_numel else ""
        yield f'{INDENT}"""{_safe(_spans(made.used_by))}{numbers}."""'
        yield ""
        yield from made.lines

    def _header(self) -> Iterator[str]:
        graph, many = self._graph, len(self.sub_models)
        total = sum(spec.numel for spec in graph.layout.specs)
        dtype = str(graph.parameter_dtype).removeprefix("torch.")
        classes = len({sub_model.class_name for sub_model in self.sub_models})
        yield f'"""{_safe(graph.model_name)} as {_several(many, "sub-model")} of ' + (
            f"{_several(classes, 'kind')}. Generated; do not edit."
        )
        yield ""
        yield f"{total:,} parameters in {dtype}. One micro-batch:"
        yield ""
        for node, name in graph.batch.items():
            spec = graph.specs[node]
            kind = str(spec.dtype).removeprefix("torch.")
            yield f"    {_safe(name)}: {kind} {list(spec.shape)}"
        yield ""
        yield "Forward runs down this table, backward runs up:"
        yield ""
        yield from table(graph.layout, self._layers, self.sub_models)
        yield '"""'


class _Chain:
    """Layers called one after the other inside one sub-model."""

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        self._graph = graph
        self._inputs, self._outputs = crossings(graph, layers)
        self._taken = {"self"}
        self._local = {
            node: unique(identifier(graph.batch.get(node, "x")), self._taken)
            for node in self._inputs
        }
        self._owner: dict[str, str] = {}
        self._members: list[str] = []
        self._calls: list[str] = []
        self.parameters: list[tuple[str, str]] = []

    def borrowed_by(self, layer: Layer) -> frozenset[str]:
        names = {self._graph.parameters[node] for node in layer.parameters}
        return frozenset(names & self._owner.keys())

    def add(self, position: int, layer: Layer, text: LayerText, class_name: str) -> None:
        member = f"layer_{position}"
        for attribute, name in text.own:
            self._owner[name] = f"self.{member}.{attribute}"
            self.parameters.append((f"{member}.{attribute}", name))
        self._members.append(f"self.{member} = {class_name}(device)")
        arguments = [self._local[node] for node in layer.inputs]
        arguments += [self._owner[name] for name in text.borrowed]
        for node in layer.outputs:
            self._local[node] = unique("x", self._taken)
        targets = tuple_text([self._local[node] for node in layer.outputs])
        self._calls.append(f"{targets} = self.{member}({', '.join(arguments)})")

    def lines(self) -> list[str]:
        arguments = ", ".join(["self", *(self._local[node] for node in self._inputs)])
        results = tuple_text([self._local[node] for node in self._outputs])
        return [
            f"{INDENT}def __init__(self, device: torch.device) -> None:",
            f"{BODY}super().__init__()",
            *(BODY + line for line in self._members),
            "",
            f"{INDENT}def forward({arguments}):",
            *(BODY + line for line in self._calls),
            f"{BODY}return {results}",
        ]


def crossings(graph: Graph, layers: Sequence[Layer]) -> tuple[list[fx.Node], list[fx.Node]]:
    """What consecutive layers take from outside, and what others need of them."""
    inside = {node for layer in layers for node in layer.calls}
    inputs = dict.fromkeys(node for layer in layers for node in layer.inputs if node not in inside)
    outputs = [
        node
        for layer in layers
        for node in layer.outputs
        if node is graph.loss
        or any(user in graph.call_set and user not in inside for user in node.users)
    ]
    return list(inputs), outputs


def table(
    layout: ParameterLayout, layers: Sequence[Layer], sub_models: Sequence[SubModel]
) -> Iterator[str]:
    """One row per sub-model."""
    rows = [("#", "class", "layers", "parameters", "takes", "gives")]
    for sub_model in sub_models:
        names = [layer.name for layer in layers[sub_model.first_layer : sub_model.last_layer + 1]]
        numel = sum(layout.by_name[name].numel for _, name in sub_model.parameters)
        span = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        takes, gives = _shortened(sub_model.inputs), _shortened(sub_model.outputs)
        rows.append((str(sub_model.index), sub_model.class_name, span, f"{numel:,}", takes, gives))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column in (0, 3) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield _safe("  " + "  ".join(cells)).rstrip()


def _shortened(names: Sequence[str]) -> str:
    """The names, or as many as fit a column of the table."""
    text = ", ".join(names)
    if len(text) <= _COLUMN or len(names) == 1:
        return text
    head = text[:_COLUMN].rpartition(", ")[0] or names[0]
    return f"{head}, … ({len(names)})"


def _spans(names: Sequence[str]) -> str:
    text = ", ".join(names)
    if len(text) <= LINE_LENGTH // 2:
        return text
    return f"{names[0]} … {names[-1]} ({len(names)} times)"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _safe(text: str) -> str:
    """Names come from the user's model: none may end the docstring it is printed in."""
    return text.replace("\\", "/").replace('"', "'")
