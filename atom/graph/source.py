"""Generation of Python source from a cut graph: one class per distinct layer.

`torch.fx` prints the forwards: each call as the operator that was traced, each value with its dtype
and shape, and dropped after its last use. Names come from the layer's own modules and operators,
never from the whole graph. So layers that compute the same give the same text and share one class.

The source is a pure function of the graph and the cut, with the same bytes on every peer. The order
in which a sub-model calls its layers is data (`SubModel.layers`), not text.
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

from atom.graph import traced
from atom.graph.ir import LayerCall, SubModel
from atom.graph.layers import Flow, Layer, flow_of
from atom.graph.traced import Graph, Span

_FILE = '''\
"""{title}
"""

from math import inf, nan

import torch
from torch import nn

aten = torch.ops.aten
# The code that executes this file defines `device`, `constants` and `functions`.


def weight(*shape: int, trains: bool = True) -> nn.Parameter:
    """Return a parameter without memory; the caller of the sub-model binds values to it."""
    empty = torch.empty(shape, dtype={dtype}, device="meta")
    return nn.Parameter(empty, requires_grad=trains)
{classes}'''

_CLASS = """

class {name}(nn.Module):
    def __init__(self) -> None:
        super().__init__()
{definitions}
{forward}
"""

TRACE_DEVICE = torch.device("cpu")
"""Device on which models are traced. In a program it stands for the device that runs it."""

_RESERVED = {"self", "torch", "nn", "aten", "weight", "constants", "functions", *dir(nn.Module())}
"""Names that the source uses itself, and attributes of every module."""


class Source:
    """Generated source of a cut graph, with its sub-models; complete after construction.

    Args:
        graph: the traced model.
        pieces: the layers and pieces of layers of each sub-model.

    Attributes:
        text: the Python source.
        sub_models: descriptions of the sub-models, in order.
        constants: constant tensors on the CPU.
    """

    def __init__(self, graph: Graph, pieces: Iterable[Sequence[Layer]]) -> None:
        self.graph = graph
        self.constants: dict[str, torch.Tensor] = {}
        """Tensors by their names in the source (the first digits of a hash of their values)."""
        self._classes: dict[tuple[str, str, str], str] = {}
        """(base of the name, lines of `__init__`, forward) → name of the class."""
        self.sub_models = tuple(self._sub_model(*each) for each in enumerate(pieces))
        self.text = self._file()

    def class_name(self, role: str, definitions: str, forward: str) -> str:
        """Return the name of the class with this text; add the class if it is new."""
        words = re.findall(r"[A-Za-z0-9]+", role)
        base = "".join(word[0].upper() + word[1:] for word in words)
        if not base or base[0].isdigit() or keyword.iskeyword(base):  # a class named `none`
            base = f"Layer{base}"
        used = {name for (other, _, _), name in self._classes.items() if other == base}
        name = f"{base}_{len(used) + 1}" if used else base
        return self._classes.setdefault((base, definitions, forward), name)

    def _sub_model(self, index: int, pieces: Sequence[Layer]) -> SubModel:
        through = flow_of(self.graph, [call for piece in pieces for call in piece.calls])
        values = {node: number for number, node in enumerate(through.inputs)}
        calls, parameters = list[LayerCall](), list[tuple[str, str]]()
        for piece in pieces:
            flow, layer = flow_of(self.graph, piece.calls), _Printer(self, piece.prefix, piece.kind)
            parameters += [(f"{len(calls)}.{path}", name) for path, name in layer.attach(flow)]
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
            *map(_title_line, self.sub_models),
        ]
        return _FILE.format(
            # Names come from the user's model: no name may end the docstring that contains it.
            title="\n".join(title).replace("\\", "/").replace('"', "'"),
            dtype=graph.parameter_dtype,
            classes="".join(
                _CLASS.format(name=name, definitions=definitions, forward=forward)
                for (_, definitions, forward), name in self._classes.items()
            ),
        )


def _title_line(sub_model: SubModel) -> str:
    """Return a line of the title: `3  blocks.4 … blocks.6: 3 x Block`."""
    counted = Counter(call.class_name for call in sub_model.layers)
    classes = ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counted.items())
    return f"    {sub_model.index}  {sub_model.name}: {classes}"


class _Verbatim:
    """Argument of a call that is printed verbatim."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Printer:
    """Printer of one class.

    A class is a layer, a piece of a layer, or calls inside one: a region (`no_grad`, autocast) or
    calls that are computed again in backward.
    """

    def __init__(self, source: Source, prefix: str, role: str) -> None:
        self._source, self._graph = source, source.graph
        self._prefix, self._role = prefix, role
        self._forward, self._attributes = fx.Graph(), fx.Graph()  # both make names unique
        self._values: dict[fx.Node, Any] = {}
        """Value of the traced graph → node or text that represents it in this class."""
        self._init_lines: list[str] = []
        self._inners: dict[str, _Verbatim] = {}

    def attach(self, flow: Flow) -> list[tuple[str, str]]:
        """Make the parameters and constants of the layer attributes of the class.

        Returns:
            Pairs (attribute, name in the layout) of the parameters, in order of first use.
        """
        paths = []
        for node in flow.parameters:
            name, shape = self._graph.parameters[node], self._graph.specs[node].shape
            frozen = [] if self._graph.specs[node].needs_grad else ["trains=False"]
            definition = f"weight({', '.join([*map(str, shape), *frozen])})"
            self._values[node] = text = self._attribute(name, definition)
            paths.append((repr(text).removeprefix("self."), name))
        for node in flow.constants:
            constant = self._graph.constants[node]
            tensor = constant.tensor.clone()
            kind = f"{tensor.dtype}{list(tensor.shape)}{tensor.stride()}"
            key = hashlib.sha256(kind.encode() + traced.tensor_bytes(tensor)).hexdigest()[:32]
            self._source.constants[key] = tensor
            definition = f'constants["{key}"]  # {tensor.dtype} {list(tensor.shape)}'
            # Torch counts the tensors that forward makes from numbers over the whole model. Such a
            # count in a name would make equal layers differ.
            wanted = re.sub(r"^lifted_tensor_\d+$", "tensor", constant.name)
            self._values[node] = self._attribute(wanted, definition)
        return paths

    def finish(
        self,
        calls: Iterable[fx.Node],
        takes: Iterable[fx.Node],
        gives: Iterable[fx.Node],
        spans: Mapping[fx.Node, Span],
    ) -> str:
        """Return the name of the class whose forward makes these calls.

        Args:
            calls: consecutive calls.
            takes: values that are the arguments of forward.
            gives: values that forward returns.
            spans: for the calls that are computed again in backward, their span.
        """
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
        return self._source.class_name(self._role, "".join(self._init_lines), forward)

    def _call(self, node: fx.Node) -> None:
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                nodes = list(traced.nested_graph(argument).graph.nodes)
                calls = [n for n in nodes if n.op == "call_function" and not traced.is_assertion(n)]
                takes, gives = [n for n in nodes if n.op == "placeholder"], nodes[-1].args[0]
                self._values[argument] = self._inner("region", calls, takes, gives)
        args: Any = map_aggregate(node.args, self._translated)
        kwargs = map_aggregate(node.kwargs, self._translated)
        name, op, target = self._value_name(node), "call_function", node.target
        if getattr(target, "namespace", "") == traced.FUNCTIONS:
            op, target, args = (
                "call_method",
                traced.operator_text(target),
                (_Verbatim("functions"), *args),
            )
        self._add(node, name, op, target, args, kwargs)

    def _checkpoint(self, calls: Sequence[fx.Node]) -> None:
        """Add calls that are computed again in backward."""
        through = flow_of(self._graph, calls)
        takes = [*through.inputs, *through.parameters, *through.constants]
        inner = self._inner("recomputed", calls, takes, through.outputs)
        settings: dict[str, Any] = {"use_reentrant": False}
        if all(traced.is_repeatable(each) for call in calls for each in traced.with_nested(call)):
            settings["preserve_rng_state"] = False
        given: Any = (inner, *(self._values[node] for node in takes))
        call = self._forward.create_node("call_function", checkpoint, given, settings, "recomputed")
        for number, node in enumerate(through.outputs):
            name = self._value_name(node)
            self._add(node, name, "call_function", operator.getitem, (call, number), {})

    def _inner(
        self,
        wanted: str,
        calls: Iterable[fx.Node],
        takes: Iterable[fx.Node],
        gives: Iterable[fx.Node],
    ) -> _Verbatim:
        """Return the attribute of an inner module that makes these calls; equal ones are shared."""
        inner = _Printer(self._source, self._prefix, f"{self._role}{wanted.capitalize()}")
        name = inner.finish(calls, takes, gives, {})
        if name not in self._inners:
            self._inners[name] = self._attribute(wanted, f"{name}()")
        return self._inners[name]

    def _add(
        self, node: fx.Node, name: str, op: str, target: Any, args: Any, kwargs: Any
    ) -> fx.Node:
        """Add a node that represents a value of the traced graph from now on."""
        created = self._forward.create_node(op, target, args, kwargs, _identifier(name))
        created.meta["val"] = node.meta.get("val")
        self._values[node] = created
        return created

    def _translated(self, value: Any) -> Any:
        """Translate an argument of a traced call to this class."""
        if isinstance(value, torch.device):
            return _Verbatim("device" if value == TRACE_DEVICE else f'torch.device("{value}")')
        return self._values[value] if isinstance(value, fx.Node) else value

    def _attribute(self, wanted: str, definition: str) -> _Verbatim:
        name = self._attributes.placeholder(_identifier(self._relative(wanted))).name
        self._init_lines.append(f"        self.{name} = {definition}\n")
        return _Verbatim(f"self.{name}")

    def _value_name(self, node: fx.Node) -> str:
        """Return a name for a value: the PyTorch module (Linear) that made it, or the operator."""
        path, kind = (traced.layer_path(node) or [("", "")])[-1]
        if traced.is_getitem(node):
            return "part"
        if kind.startswith("torch.nn."):
            return self._relative(path.partition("@")[0])
        return str(getattr(node.target, "_opname", "region"))

    def _relative(self, path: str) -> str:
        """Return a path in the model, relative to the layer."""
        return path.removeprefix(f"{self._prefix}.") if self._prefix else path


def _identifier(wanted: str) -> str:
    """Return an identifier like `wanted` that is not reserved."""
    name = re.sub(r"\W+", "_", wanted, flags=re.ASCII).strip("_") or "value"
    return f"{name}_" if name in _RESERVED or keyword.iskeyword(name) else name
