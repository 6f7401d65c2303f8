"""A cut graph as Python source: one class per distinct layer, and a table of what runs when.

The source is a pure function of the graph and the cut: the same bytes on every peer. What a
sub-model of several layers calls in which order is data (`SubModel.layers`), not text.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import fx

from atom.graph.generate.printer import RESERVED, LayerText
from atom.graph.generate.python_text import INDENT, LINE_LENGTH, docstring_text
from atom.graph.ir import LayerCall, SubModel
from atom.graph.layers import Layer, pieces_of
from atom.graph.traced import Graph

_IMPORTS = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

aten = torch.ops.aten
# `device`, `constants` and `functions` are given by whoever runs this.


def weight(*shape: int, trains: bool = True) -> nn.Parameter:
    \"\"\"A parameter without memory; whoever runs the sub-model puts the values in.\"\"\"
    empty = torch.empty(shape, dtype={dtype}, device="meta")
    return nn.Parameter(empty, requires_grad=trains)
"""


class Source:
    """Generates the source. `text`, `sub_models` and `constants` are ready after construction.

    `ends` are the positions in `graph.calls` where sub-models end, as `pieces_of` checks them.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], ends: Sequence[int]) -> None:
        self._graph = graph
        self._classes: dict[str, str] = {}
        """Name by text."""
        self._composites: dict[tuple[LayerCall, ...], str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        """On the CPU, by the names that the source has for them."""
        self.sub_models = tuple(self._sub_models(pieces_of(graph, layers, ends), ends))
        self.text = "\n".join(self._file()) + "\n"

    def _sub_models(self, pieces: Sequence[Layer], ends: Sequence[int]) -> Iterator[SubModel]:
        first = start = 0
        for index, end in enumerate(ends):
            last, reached = first, start
            while (reached := reached + len(pieces[last].calls)) < end:
                last += 1
            yield self._sub_model(index, pieces[first : last + 1], start, end)
            first, start = last + 1, end

    def _sub_model(
        self, index: int, pieces: Sequence[Layer], first_call: int, end_call: int
    ) -> SubModel:
        inputs, outputs = _crossings(self._graph, pieces)
        values = {node: number for number, node in enumerate(inputs)}
        calls, parameters = [], []
        for place, piece in enumerate(pieces):
            text = LayerText(self._graph, piece)
            self.constants |= text.constants
            name = self._class_name(piece.kind, text.lines)
            taken = tuple(values[node] for node in piece.inputs)
            for node in piece.outputs:
                values[node] = len(values)
            calls.append(LayerCall(name, taken, tuple(values[node] for node in piece.outputs)))
            parameters += [(f"{place}.{attribute}", name) for attribute, name in text.parameters]
        names = dict.fromkeys([pieces[0].name, pieces[-1].name])
        value_name = self._graph.value_name
        return SubModel(
            index=index,
            class_name=self._composite(tuple(calls)),
            parameters=tuple(parameters),
            inputs=tuple(map(value_name, inputs)),
            outputs=tuple(map(value_name, outputs)),
            inputs_need_grad=tuple(self._graph.specs[node].needs_grad for node in inputs),
            first_layer=pieces[0].index,
            last_layer=pieces[-1].index,
            name=" … ".join(names),
            first_call=first_call,
            end_call=end_call,
            layers=tuple(calls),
            gives=tuple(values[node] for node in outputs),
        )

    def _class_name(self, wanted: str, lines: Sequence[str]) -> str:
        key = "\n".join([wanted, *lines])
        if key not in self._classes:
            words = re.findall(r"[A-Za-z0-9]+", wanted)
            base = "".join(word[0].upper() + word[1:] for word in words) or "Layer"
            base = f"Layer{base}" if base[0].isdigit() else base
            self._classes[key] = self._new_name(base)
        return self._classes[key]

    def _new_name(self, base: str) -> str:
        taken = {*RESERVED, *self._classes.values(), *self._composites.values()}
        name, number = base, 2
        while name in taken:
            name, number = f"{base}{number}", number + 1
        return name

    def _composite(self, calls: tuple[LayerCall, ...]) -> str:
        """Equal for sub-models that call the same classes in the same way."""
        if len(calls) == 1:
            return calls[0].class_name
        if calls not in self._composites:
            self._composites[calls] = self._new_name("SubModel")
        return self._composites[calls]

    def _file(self) -> Iterator[str]:
        yield from self._header()
        yield ""
        yield _IMPORTS.format(dtype=self._graph.parameter_dtype).rstrip()
        for text, name in self._classes.items():
            yield f"\n\nclass {name}(nn.Module):"
            yield text.partition("\n")[2]

    def _header(self) -> Iterator[str]:
        graph = self._graph
        total = sum(spec.numel for spec in graph.layout.specs)
        dtype = str(graph.parameter_dtype).removeprefix("torch.")
        yield f'"""{docstring_text(graph.model_name)} in sub-models. Generated; do not edit.'
        yield ""
        yield f"Graph {graph.graph_hash[:32]}: {total:,} parameters in {dtype}. One micro-batch:"
        yield ""
        for node, name in graph.batch.items():
            spec = graph.specs[node]
            kind = str(spec.dtype).removeprefix("torch.")
            yield f"{INDENT}{docstring_text(name)}: {kind} {list(spec.shape)}"
        yield ""
        yield "Sub-models in the order of the forward, with the classes that they call in turn:"
        yield ""
        for _, alike in groupby(self.sub_models, lambda each: each.class_name):
            yield from textwrap.wrap(
                docstring_text(_row(list(alike))),
                LINE_LENGTH,
                initial_indent=INDENT,
                subsequent_indent=INDENT * 2,
            )
        yield '"""'


def _row(alike: Sequence[SubModel]) -> str:
    """`1 … 32  blocks.0 … blocks.31: Block`, for sub-models of one kind in a row."""
    first, last = alike[0], alike[-1]
    numbers = " … ".join(dict.fromkeys([str(first.index), str(last.index)]))
    ends = first.name.partition(" … ")[0], last.name.rpartition(" … ")[2]
    names = " … ".join(dict.fromkeys(ends))
    classes = []
    for name, run in groupby(call.class_name for call in first.layers):
        times = len(list(run))
        classes.append(name if times == 1 else f"{times} x {name}")
    return f"{numbers}  {names}: {', '.join(classes)}"


def _crossings(graph: Graph, layers: Sequence[Layer]) -> tuple[list[fx.Node], list[fx.Node]]:
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
