"""Compilation of models to programs, and of programs to modules."""

import hashlib
import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from atom.graph.ir import Program, SubModel
from atom.graph.layers import layer_ends, layers_of, pieces_of
from atom.graph.source import Source
from atom.graph.trace import trace
from atom.graph.traced import Graph, shared_values


def compile_program(model: nn.Module, example_batch: Mapping[str, torch.Tensor]) -> Program:
    """Trace a model and compile it to a program with one sub-model per layer.

    Args:
        model: its forward returns the mean loss. It may be on the `meta` device; it is not changed.
        example_batch: tensors by the names of forward's arguments; it is not changed.

    Raises:
        ModelError: the model cannot be traced; the message names the obstacle.
    """
    return build_program(trace(model, example_batch))


def build_program(graph: Graph, ends: Sequence[int] | None = None) -> Program:
    """Cut a traced graph into sub-models and print them as Python source.

    Args:
        graph: the traced model. It can be cut several times.
        ends: positions in `graph.calls` at which sub-models end: ascending, none of them in
            `graph.forbidden_cuts`, the last one `len(graph.calls)`. By default, each layer is a
            sub-model.

    Raises:
        ValueError: `ends` is no such cut.
    """
    layers = layers_of(graph)
    ends = layer_ends(layers) if ends is None else tuple(ends)
    source = Source(graph, pieces_of(graph, layers, ends))
    crossing = {*graph.batch.values()}
    crossing.update(n for part in source.sub_models for n in (*part.inputs, *part.outputs))
    named = {graph.value_name(node): node for node in (*graph.batch, *graph.calls)}
    values = {name: graph.specs[node] for name, node in named.items() if name in crossing}
    return Program(
        layout=graph.layout,
        sub_models=source.sub_models,
        batch_inputs=tuple(graph.batch.values()),
        loss=graph.value_name(graph.loss),
        source=source.text,
        graph_hash=graph.graph_hash,
        values=values,
        parameter_dtype=graph.parameter_dtype,
        shared=frozenset(map(graph.value_name, shared_values(graph))) & values.keys(),
        constants=source.constants,
        functions=graph.functions,
        own_backwards=graph.own_backwards,
    )


def load(program: Program, device: torch.device | str) -> list[Callable[[], nn.Module]]:
    """Return one factory per sub-model. Each call of a factory builds a new module.

    This executes the program's source, so pass only programs that this process generated.

    Args:
        program: the program.
        device: device of the modules' constants. Their parameters are on `meta`; the caller binds
            tensors to them (`atom.graph.segment.bind`).
    """
    classes = _execute(program, torch.device(device))
    return [partial(_Layers, sub_model, classes) for sub_model in program.sub_models]


class _Layers(nn.ModuleList):
    """Module of a sub-model, which calls its layers in order."""

    def __init__(self, sub_model: SubModel, classes: Mapping[str, Any]) -> None:
        super().__init__(classes[call.class_name]() for call in sub_model.layers)
        last_readers = {n: i for i, call in enumerate(sub_model.layers) for n in call.takes}
        self._plan = [
            (call, [n for n in call.takes if last_readers[n] == i and n not in sub_model.gives])
            for i, call in enumerate(sub_model.layers)
        ]
        self._gives = sub_model.gives

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(enumerate(inputs))
        for layer, (call, done) in zip(self, self._plan, strict=True):
            results = layer(*(values[number] for number in call.takes))
            for number in done:
                values.pop(number, None)
            values.update(zip(call.gives, results, strict=True))
            del results  # this name would keep the memory of dropped values
        return tuple(values[number] for number in self._gives)


def _execute(program: Program, device: torch.device) -> dict[str, Any]:
    name = f"sub_models_{hashlib.sha256(program.source.encode()).hexdigest()[:12]}"
    filename = f"<{name}>"
    lines = program.source.splitlines(keepends=True)
    # Without a modification time the entry is never compared with a file, so that tracebacks can
    # show its lines.
    linecache.cache[filename] = (len(program.source), None, lines, filename)
    namespace: dict[str, Any] = {
        "__name__": f"atom_{name}",
        "device": device,
        "constants": {name: tensor.to(device) for name, tensor in program.constants.items()},
        "functions": SimpleNamespace(**program.functions),
    }
    exec(compile(program.source, filename, "exec"), namespace)
    return namespace
