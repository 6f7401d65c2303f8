"""From what `torch.export` gives to a `Graph`, refusing by name what would not be faithful."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from atom.base.errors import ModelError
from atom.graph.digest import graph_hash
from atom.graph.ir import ParameterLayout
from atom.graph.traced import Constant, Graph, Span, is_getitem, is_random
from atom.graph.tracing.checkpoints import recomputed_spans
from atom.graph.tracing.constants import constant_of, refuse_large
from atom.graph.tracing.effects import Effects, observe
from atom.graph.tracing.failures import place_of
from atom.graph.tracing.hidden_matrices import hidden_matrices
from atom.graph.tracing.refused_calls import refuse_transformations, refuse_unfaithful

_ASSERTION = "_assert_tensor_metadata"
"""Checks that tracing adds; they repeat what static shapes already say."""


def read_exported(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    exported: ExportedProgram,
    mode: FakeTensorMode,
) -> Graph:
    """The graph in an exported program. `batch` is in the order of forward's arguments.

    Raises: ModelError naming what would not be computed faithfully.
    """
    refuse_transformations(exported.graph)
    placeholders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    kinds = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    owners = _first_names(model)
    parameters, constants, entries = {}, {}, []
    for node in placeholders:
        spec = kinds[node.name]
        if spec.kind is InputKind.PARAMETER:
            parameters[node] = owners[spec.target or ""]
        elif spec.kind is InputKind.USER_INPUT:
            entries.append(node)
        else:
            constants[node] = constant_of(model, exported, spec.target or "")
    loss = _loss(model, exported)
    frozen = frozenset(n for n, p in model.named_parameters() if not p.requires_grad)
    fakes = _fakes(placeholders, parameters, frozen, mode)
    effects = observe(exported.graph_module, fakes, mode)
    reading = _Reading(
        exported, effects, parameters, constants, dict(zip(entries, batch, strict=True))
    )
    return reading.graph(model, loss, frozen)


class _Reading:
    """The pieces found in an exported program, on their way to a `Graph`."""

    def __init__(
        self,
        exported: ExportedProgram,
        effects: Effects,
        parameters: Mapping[fx.Node, str],
        constants: Mapping[fx.Node, Constant],
        batch: Mapping[fx.Node, str],
    ) -> None:
        self.exported = exported
        self.effects = effects
        self.parameters = parameters
        self.constants = constants
        self.batch = batch

    def graph(self, model: nn.Module, loss: fx.Node, frozen: frozenset[str]) -> Graph:
        self._refuse_mutated_inputs()
        calls = self._calls(loss)
        used = _in_order_of_use(calls, self.parameters)
        names = list(dict.fromkeys(self.parameters[node] for node in used))
        shapes = {self.parameters[node]: self.effects.specs[node].shape for node in used}
        constants = {n: self.constants[n] for n in _in_order_of_use(calls, self.constants)}
        self._check(calls, loss, constants)
        root = self.exported.graph_module
        inputs = [*used, *constants, *self.batch]
        spans = recomputed_spans(calls, loss)
        return Graph(
            model_name=type(model).__name__,
            root=root,
            calls=calls,
            parameters={node: self.parameters[node] for node in used},
            constants=constants,
            batch=self.batch,
            loss=loss,
            layout=ParameterLayout.of(
                {name: shapes[name] for name in names}, hidden_matrices(calls, self.parameters)
            ),
            parameter_dtype=self._parameter_dtype(used),
            frozen=frozen.intersection(names),
            specs=self.effects.specs,
            forbidden_cuts=_forbidden_cuts(calls, loss, self.effects, spans),
            graph_hash=graph_hash(inputs, calls, loss, self.effects.specs, constants, spans),
            recomputed=spans,
        )

    def _calls(self, loss: fx.Node) -> tuple[fx.Node, ...]:
        """What the loss needs, and whatever draws random numbers or changes memory."""
        live = {loss}
        body = [
            node
            for node in self.exported.graph.nodes
            if node.op == "call_function" and _ASSERTION not in str(node.target)
        ]
        for node in reversed(body):
            if node in live or is_random(node) or node in self.effects.mutating:
                live.add(node)
                live.update(node.all_input_nodes)
        return tuple(node for node in body if node in live)

    def _check(
        self, calls: Iterable[fx.Node], loss: fx.Node, constants: Mapping[fx.Node, Constant]
    ) -> None:
        for node in calls:
            refuse_unfaithful(node)
        spec = self.effects.specs.get(loss)
        if spec is None or spec.shape or not spec.dtype.is_floating_point or not spec.needs_grad:
            raise ModelError(
                "the model's forward does not return a scalar loss with a gradient",
                "return the mean loss of the micro-batch as one floating-point scalar",
            )
        for constant in constants.values():
            refuse_large(constant)

    def _refuse_mutated_inputs(self) -> None:
        named = {
            **{node: f"the parameter {name}" for node, name in self.parameters.items()},
            **{node: f"the buffer {constant.name}" for node, constant in self.constants.items()},
            **{node: f"the batch's entry {name}" for node, name in self.batch.items()},
        }
        for node, call in self.effects.mutated_inputs.items():
            raise ModelError(
                f"the model changes {named[node]} in place, at {place_of(call)}",
                "state that changes in forward would differ between peers: use a layer without "
                "running statistics (LayerNorm, GroupNorm), or freeze it",
            )

    def _parameter_dtype(self, used: Iterable[fx.Node]) -> torch.dtype:
        first: dict[torch.dtype, str] = {}
        for node in used:
            first.setdefault(self.effects.specs[node].dtype, self.parameters[node])
        if len(first) > 1:
            kinds = ", ".join(f"{name} is {_short(dtype)}" for dtype, name in first.items())
            raise ModelError(
                f"parameters have different dtypes: {kinds}", "convert the model to one dtype"
            )
        if not first:
            raise ModelError("the loss depends on no parameter")
        dtype, name = next(iter(first.items()))
        if not dtype.is_floating_point:
            raise ModelError(
                f"the parameter {name} is {_short(dtype)}; weights are real floating-point numbers",
                "hold it as real numbers (torch.view_as_real) and make it complex in forward",
            )
        return dtype


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every path of a parameter → the first of its paths, so that tied ones are one."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _loss(model: nn.Module, exported: ExportedProgram) -> fx.Node:
    outputs = list(exported.graph_signature.user_outputs)
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "call_function"}
    what = ""
    if len(outputs) != 1:
        what = f"{len(outputs)} values"
    elif not isinstance(outputs[0], str) or outputs[0] not in nodes:
        what = "no tensor that it computed"
    elif (returned := exported.call_spec.out_spec) and not returned.is_leaf():
        what = f"a {getattr(returned.type, '__name__', 'container')}"
    if what:
        raise ModelError(
            f"{type(model).__name__}.forward returns {what}, not the loss alone",
            "return the mean loss of the micro-batch as one scalar tensor",
        )
    loss: fx.Node = nodes[outputs[0]]
    return loss


def _fakes(
    placeholders: Iterable[fx.Node],
    parameters: Mapping[fx.Node, str],
    frozen: frozenset[str],
    mode: FakeTensorMode,
) -> list[torch.Tensor]:
    fakes = []
    for node in placeholders:
        value = node.meta["val"]
        with mode:
            fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        fakes.append(fake.requires_grad_(node in parameters and parameters[node] not in frozen))
    return fakes


def _in_order_of_use(calls: Iterable[fx.Node], among: Mapping[fx.Node, Any]) -> list[fx.Node]:
    used = dict.fromkeys(node for call in calls for node in call.all_input_nodes if node in among)
    return list(used)


def _forbidden_cuts(
    calls: tuple[fx.Node, ...],
    loss: fx.Node,
    effects: Effects,
    recomputed: Iterable[Span],
) -> frozenset[int]:
    """Between a call and the picks of its results, between making memory and its last change in
    place, within what is recomputed together, and after the loss."""
    position = {node: index for index, node in enumerate(calls)}
    spans = [(position[first], position[last]) for first, last in effects.alias_spans]
    for node in calls:
        if is_getitem(node):
            maker = node.args[0]
            assert isinstance(maker, fx.Node)
            spans.append((position[maker], position[node]))
    spans += [(first, end - 1) for first, end in recomputed]
    spans.append((position[loss], len(calls)))
    return frozenset(p for first, last in spans for p in range(first + 1, last + 1))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
