"""A cut graph as Python source: one class per distinct sub-model, and a table of what runs when.

The source is a pure function of the graph and the cut: the same bytes on every peer.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx

from atom.graph.generate.composite import CompositeText, crossings
from atom.graph.generate.contents import Row, table
from atom.graph.generate.printer import CHECKPOINT, LayerText
from atom.graph.generate.python_text import INDENT, LINE_LENGTH, docstring_text, shortened
from atom.graph.ir import SubModel
from atom.graph.layers import Layer, pieces_of
from atom.graph.traced import Graph

_IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""

_CHECKPOINT = f"from torch.utils.checkpoint import {CHECKPOINT}\n"

_WEIGHT = '''\
def weight(*shape: int{trains}) -> nn.Parameter:
    """A parameter without memory; whoever runs the sub-model puts the values in."""
    empty = torch.empty(shape, dtype={dtype}, device="meta")
    return nn.Parameter(empty{requires_grad})
'''

_CONSTANT = '''\
def constant(text: str, dtype: torch.dtype, shape: list[int], device: torch.device) -> torch.Tensor:
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
    """Generates the source. `text` and `sub_models` are ready after construction.

    `ends` are the positions in `graph.calls` where sub-models end, as `pieces_of` checks them.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], ends: Sequence[int]) -> None:
        self._graph = graph
        self._classes: dict[str, _Class] = {}
        self._names: set[str] = {"F", "nn", "torch", "base64", CHECKPOINT}
        self._rows: list[Row] = []
        self.sub_models = tuple(self._sub_models(pieces_of(graph, layers, ends), ends))
        self.text = "\n".join(self._file()) + "\n"
        self.hash = hashlib.sha256(self.text.encode()).hexdigest()

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
        if len(pieces) == 1:
            text = LayerText(self._graph, pieces[0], frozenset())
            class_name = self._layer_class(pieces[0], text).name
            parameters = text.own
        else:
            class_name, parameters = self._composite(pieces)
        inputs, outputs = crossings(self._graph, pieces)
        row = self._row(class_name, pieces, parameters, inputs, outputs)
        self._rows.append(row)
        return SubModel(
            index=index,
            class_name=class_name,
            parameters=tuple(parameters),
            inputs=tuple(self._graph.value_name(node) for node in inputs),
            outputs=tuple(self._graph.value_name(node) for node in outputs),
            inputs_need_grad=tuple(self._graph.specs[node].needs_grad for node in inputs),
            first_layer=pieces[0].index,
            last_layer=pieces[-1].index,
            name=row.span,
            first_call=first_call,
            end_call=end_call,
        )

    def _row(
        self,
        class_name: str,
        pieces: Sequence[Layer],
        parameters: Sequence[tuple[str, str]],
        inputs: Sequence[fx.Node],
        outputs: Sequence[fx.Node],
    ) -> Row:
        specs, places = self._graph.specs, self._graph.layout.by_name
        return Row(
            class_name=class_name,
            first_layer=pieces[0].name,
            last_layer=pieces[-1].name,
            parameters=sum(places[name].numel for _, name in parameters),
            bytes_in=sum(specs[node].size_bytes for node in inputs),
            bytes_out=sum(specs[node].size_bytes for node in outputs),
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

    def _composite(self, layers: Sequence[Layer]) -> tuple[str, list[tuple[str, str]]]:
        """The class of a sub-model of several layers: it holds theirs and calls them in turn."""
        composite = CompositeText(self._graph, layers)
        for layer in layers:
            text = LayerText(self._graph, layer, composite.borrowed_by(layer))
            composite.add(layer, text, self._layer_class(layer, text).name)
        lines = composite.lines
        span = f"{layers[0].name} … {layers[-1].name}"
        made = self._class("\n".join(lines), "SubModel", lines, span, 0)
        return made.name, composite.parameters

    def _file(self) -> Iterator[str]:
        body = [line for made in self._classes.values() for line in made.lines]
        yield from self._header()
        yield ""
        if any("= constant(" in line for line in body):
            yield "import base64\n"
        yield _IMPORTS + (_CHECKPOINT if self._graph.recomputed else "")
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
        room = LINE_LENGTH - len(INDENT) - len('"""."""') - len(numbers)
        yield f'{INDENT}"""{docstring_text(_spans(made.used_by, room))}{numbers}."""'
        yield ""
        yield from made.lines

    def _header(self) -> Iterator[str]:
        graph, many = self._graph, len(self.sub_models)
        total = sum(spec.numel for spec in graph.layout.specs)
        dtype = str(graph.parameter_dtype).removeprefix("torch.")
        classes = len({sub_model.class_name for sub_model in self.sub_models})
        yield f'"""{docstring_text(graph.model_name)} as {_several(many, "sub-model")} of ' + (
            f"{_several(classes, 'kind')}. Generated; do not edit."
        )
        yield ""
        yield f"{total:,} parameters in {dtype}. One micro-batch:"
        yield ""
        for node, name in graph.batch.items():
            spec = graph.specs[node]
            kind = str(spec.dtype).removeprefix("torch.")
            yield f"    {docstring_text(name)}: {kind} {list(spec.shape)}"
        yield ""
        yield "Forward runs down this table, backward runs up. In and out: what a sub-model takes"
        yield "and gives, in bytes of one micro-batch."
        yield ""
        yield from table(self._rows)
        yield '"""'


def _spans(names: Sequence[str], width: int) -> str:
    text = ", ".join(names)
    if len(text) <= LINE_LENGTH // 2:
        return text
    times = f" ({len(names)} times)" if len(names) > 1 else ""
    between = ", …, " if any("…" in name for name in names) else " … "
    ends = between.join(dict.fromkeys([names[0], names[-1]]))
    return shortened(ends, width - len(times)) + times


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
