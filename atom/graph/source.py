"""A cut graph as Python source: one class per distinct layer, and a table of what runs when.

Forwards are printed by `torch.fx`: every call as the operator that was traced, every value with its
dtype and shape, and dropped after its last use. Names come from the layer's own modules and
operators, never from the whole graph, so layers that compute the same give the same text and share
one class. The source is a pure function of the graph and the cut: the same bytes on every peer.
What a sub-model of several layers calls in which order is data (`SubModel.layers`), not text.
"""

import hashlib
import keyword
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.utils.checkpoint import checkpoint

from atom.graph.ir import LayerCall, SubModel
from atom.graph.layers import Flow, Layer, flow_of
from atom.graph.traced import (
    FUNCTIONS,
    Graph,
    Span,
    is_assertion,
    is_getitem,
    layer_path,
    nested_graph,
    operator_text,
    repeats,
    tensor_bytes,
    with_nested,
)

_FILE = '''\
"""{title}
"""

from math import inf, nan

import torch
from torch import nn

aten = torch.ops.aten
# `device`, `constants` and `functions` are given by whoever runs this.


def weight(*shape: int, trains: bool = True) -> nn.Parameter:
    """A parameter without memory; whoever runs the sub-model puts the values in."""
    empty = torch.empty(shape, dtype={dtype}, device="meta")
    return nn.Parameter(empty, requires_grad=trains)
{classes}'''

_CLASS = """

class {name}(nn.Module):
    def __init__(self) -> None:
        super().__init__()
{made}
{forward}
"""

TRACE_DEVICE = torch.device("cpu")
"""Models are traced on this device; in the program it stands for whichever device runs it."""

_TAKEN = {"self", "torch", "nn", "aten", "weight", "constants", "functions", *dir(nn.Module())}
"""What the source uses itself, and what modules have already."""


class Source:
    """Generates the source. `text`, `sub_models` and `constants` are ready after construction.

    `runs`: of every sub-model, its layers and pieces of layers.
    """

    def __init__(self, graph: Graph, runs: Iterable[Sequence[Layer]]) -> None:
        self.graph = graph
        self.constants: dict[str, torch.Tensor] = {}
        """On the CPU, by what the source calls them: the beginning of a hash of their values."""
        self._classes: dict[tuple[str, str, str], str] = {}
        """Name by role, what `__init__` makes, and forward."""
        self.sub_models = tuple(self._sub_model(*each) for each in enumerate(runs))
        self.text = self._file()

    def class_name(self, role: str, made: str, forward: str) -> str:
        """The name of the class with this text."""
        words = re.findall(r"[A-Za-z0-9]+", role)
        base = "".join(word[0].upper() + word[1:] for word in words)
        if not base or base[0].isdigit() or keyword.iskeyword(base):  # a class called `none`
            base = f"Layer{base}"
        used = {name for (other, _, _), name in self._classes.items() if other == base}
        name = f"{base}_{len(used) + 1}" if used else base
        return self._classes.setdefault((base, made, forward), name)

    def _sub_model(self, index: int, pieces: Sequence[Layer]) -> SubModel:
        through = flow_of(self.graph, [call for piece in pieces for call in piece.calls])
        values = {node: number for number, node in enumerate(through.inputs)}
        calls, parameters = list[LayerCall](), list[tuple[str, str]]()
        for piece in pieces:
            flow, layer = flow_of(self.graph, piece.calls), _Class(self, piece.prefix, piece.kind)
            parameters += [(f"{len(calls)}.{path}", name) for path, name in layer.hold(flow)]
            name = layer.finish(piece.calls, flow.inputs, flow.outputs, self.graph.span_of)
            taken = tuple(values[node] for node in flow.inputs)
            values |= {node: len(values) + i for i, node in enumerate(flow.outputs)}
            calls.append(LayerCall(name, taken, tuple(values[node] for node in flow.outputs)))
        return SubModel(
            index=index,
            name=" … ".join(dict.fromkeys([pieces[0].name, pieces[-1].name])),
            parameters=tuple(parameters),
            inputs=tuple(map(self.graph.value_name, through.inputs)),
            outputs=tuple(map(self.graph.value_name, through.outputs)),
            inputs_need_grad=tuple(self.graph.specs[node].needs_grad for node in through.inputs),
            layers=tuple(calls),
            gives=tuple(values[node] for node in through.outputs),
        )

    def _file(self) -> str:
        graph = self.graph
        total = sum(spec.numel for spec in graph.layout.specs)
        title = [
            f"{graph.model_name} in sub-models. Generated; do not edit.",
            "",
            f"Graph {graph.graph_hash[:32]}: {total:,} parameters in {graph.parameter_dtype}.",
            "Sub-models in the order of the forward, with the classes that they call:",
            "",
            *map(_row, self.sub_models),
        ]
        return _FILE.format(
            # Names come from the user's model: none may end the docstring that it is printed in.
            title="\n".join(title).replace("\\", "/").replace('"', "'"),
            dtype=graph.parameter_dtype,
            classes="".join(
                _CLASS.format(name=name, made=made, forward=forward)
                for (_, made, forward), name in self._classes.items()
            ),
        )


def _row(sub_model: SubModel) -> str:
    """`3  blocks.4 … blocks.6: 3 x Block`"""
    counted = Counter(call.class_name for call in sub_model.layers)
    classes = ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counted.items())
    return f"    {sub_model.index}  {sub_model.name}: {classes}"


class _Text:
    """An argument that is printed as it stands."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Class:
    """A class that is being printed: a layer or a piece of one; or what it computes in a region
    (`no_grad`, autocast) or again in backward, which is a class of its own."""

    def __init__(self, source: Source, prefix: str, role: str) -> None:
        self._source, self._graph = source, source.graph
        self._prefix, self._role = prefix, role
        self._forward, self._attributes = fx.Graph(), fx.Graph()  # each makes names unique
        self._values: dict[fx.Node, Any] = {}
        """What stands for a value of the traced graph here."""
        self._made: list[str] = []
        self._inners: dict[str, _Text] = {}

    def hold(self, flow: Flow) -> list[tuple[str, str]]:
        """Makes the layer's parameters and constants attributes. Gives the parameters: (attribute,
        name in the layout), in order of first use."""
        paths = []
        for node in flow.parameters:
            name, shape = self._graph.parameters[node], self._graph.specs[node].shape
            frozen = [] if self._graph.specs[node].needs_grad else ["trains=False"]
            made = f"weight({', '.join([*map(str, shape), *frozen])})"
            self._values[node] = text = self._attribute(name, made)
            paths.append((repr(text).removeprefix("self."), name))
        for node in flow.constants:
            constant = self._graph.constants[node]
            tensor = constant.tensor.clone()
            kind = f"{tensor.dtype}{list(tensor.shape)}{tensor.stride()}"
            key = hashlib.sha256(kind.encode() + tensor_bytes(tensor)).hexdigest()[:32]
            self._source.constants[key] = tensor
            made = f'constants["{key}"]  # {tensor.dtype} {list(tensor.shape)}'
            # Tensors that forward makes from numbers are counted over the whole model by torch.
            wanted = re.sub(r"^lifted_tensor_\d+$", "tensor", constant.name)
            self._values[node] = self._attribute(wanted, made)
        return paths

    def finish(
        self,
        calls: Iterable[fx.Node],
        takes: Iterable[fx.Node],
        gives: Iterable[fx.Node],
        spans: Mapping[fx.Node, Span],
    ) -> str:
        """The name of the class whose forward makes these calls. `spans`: what of them is computed
        again in backward."""
        for node in takes:
            named = self._graph.batch.get(node) or self._graph.parameters.get(node, "x")
            argument = self._add(node, self._relative(named), "placeholder", "x", (), {})
            argument.target = argument.name
        for span, run in groupby(calls, spans.get):
            if span is not None:
                self._checkpoint(list(run))
            else:
                for node in run:
                    self._call(node)
        self._forward.output(tuple(self._values[node] for node in gives))
        printed = self._forward.python_code("self", verbose=True).src.splitlines()
        lines = (line for line in printed if line.strip() and not line.lstrip().startswith("# "))
        forward = "\n".join(f"    {line.replace('torch.ops.aten.', 'aten.')}" for line in lines)
        return self._source.class_name(self._role, "".join(self._made), forward)

    def _call(self, node: fx.Node) -> None:
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                nodes = list(nested_graph(argument).graph.nodes)
                calls = [n for n in nodes if n.op == "call_function" and not is_assertion(n)]
                takes, gives = [n for n in nodes if n.op == "placeholder"], nodes[-1].args[0]
                self._values[argument] = self._inner("region", calls, takes, gives)
        args: Any = map_aggregate(node.args, self._here)
        kwargs = map_aggregate(node.kwargs, self._here)
        name, op, target = self._called(node), "call_function", node.target
        if getattr(target, "namespace", "") == FUNCTIONS:
            op, target, args = "call_method", operator_text(target), (_Text("functions"), *args)
        self._add(node, name, op, target, args, kwargs)

    def _checkpoint(self, calls: Sequence[fx.Node]) -> None:
        """The calls are computed again in backward."""
        through = flow_of(self._graph, calls)
        takes = [*through.inputs, *through.parameters, *through.constants]
        inner = self._inner("recomputed", calls, takes, through.outputs)
        settings: dict[str, Any] = {"use_reentrant": False}
        if all(repeats(each) for call in calls for each in with_nested(call)):
            settings["preserve_rng_state"] = False
        given: Any = (inner, *(self._values[node] for node in takes))
        made = self._forward.create_node("call_function", checkpoint, given, settings, "recomputed")
        for number, node in enumerate(through.outputs):
            name = self._called(node)
            self._add(node, name, "call_function", operator.getitem, (made, number), {})

    def _inner(
        self,
        wanted: str,
        calls: Iterable[fx.Node],
        takes: Iterable[fx.Node],
        gives: Iterable[fx.Node],
    ) -> _Text:
        """A module of a class of its own; one for all that compute the same."""
        inner = _Class(self._source, self._prefix, f"{self._role}{wanted.capitalize()}")
        name = inner.finish(calls, takes, gives, {})
        if name not in self._inners:
            self._inners[name] = self._attribute(wanted, f"{name}()")
        return self._inners[name]

    def _add(
        self, node: fx.Node, name: str, op: str, target: Any, args: Any, kwargs: Any
    ) -> fx.Node:
        """Stands for a value of the traced graph from now on."""
        made = self._forward.create_node(op, target, args, kwargs, _free(name))
        made.meta["val"] = node.meta.get("val")
        self._values[node] = made
        return made

    def _here(self, value: Any) -> Any:
        """What a traced call was given, as it is here."""
        if isinstance(value, torch.device):
            return _Text("device" if value == TRACE_DEVICE else f'torch.device("{value}")')
        return self._values[value] if isinstance(value, fx.Node) else value

    def _attribute(self, wanted: str, made: str) -> _Text:
        name = self._attributes.placeholder(_free(self._relative(wanted))).name
        self._made.append(f"        self.{name} = {made}\n")
        return _Text(f"self.{name}")

    def _called(self, node: fx.Node) -> str:
        """After the module of PyTorch's own that made the value (a Linear), or the operator."""
        path, kind = (layer_path(node) or [("", "")])[-1]
        if is_getitem(node):
            return "part"
        if kind.startswith("torch.nn."):
            return self._relative(path.partition("@")[0])
        return str(getattr(node.target, "_opname", "region"))

    def _relative(self, path: str) -> str:
        """A path in the model as seen from the layer."""
        return path.removeprefix(f"{self._prefix}.") if self._prefix else path


def _free(wanted: str) -> str:
    """An identifier like `wanted`, which nothing here has yet."""
    name = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "value"
    return f"{name}_" if name in _TAKEN or keyword.iskeyword(name) else name
