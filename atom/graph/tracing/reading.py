"""From what `torch.export` gives to a `Graph`, refusing by name what would not be faithful."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from atom.graph.digest import graph_hash
from atom.graph.ir import ParameterLayout
from atom.graph.traced import (
    Constant,
    Graph,
    Span,
    bind,
    is_getitem,
    is_random,
    is_region,
    operator_text,
    with_nested,
)
from atom.graph.tracing.checkpoints import recomputed_spans
from atom.graph.tracing.effects import Effects, observe
from atom.graph.tracing.hidden_matrices import hidden_matrices
from atom.graph.tracing.refusals import Refusal, place_of

SMALL_CONSTANT_BYTES = 64 * 1024
"""Buffers up to this size are held on the device beside the sub-models."""

_REGIONS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
"""The only nested graphs we know: `with torch.no_grad()`, `with torch.autocast(…)`."""

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
    # Before the graph is run: entering one half would leave torch's own state in disorder.
    for node in exported.graph.nodes:
        if "_functorch" in str(getattr(node.target, "__module__", "")):
            raise Refusal.TRANSFORMED.error(place=place_of(node))
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
            constants[node] = _constant_of(model, exported, spec.target or "")
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
        self._check(calls, loss, constants.values())
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
        self, calls: Iterable[fx.Node], loss: fx.Node, constants: Iterable[Constant]
    ) -> None:
        for node in calls:
            _refuse_unfaithful(node)
        functions: dict[str, Any] = {}
        for node in (inner for call in calls for inner in with_nested(call)):
            name = operator_text(node.target)
            if functions.setdefault(name, node.target) is not node.target:
                raise Refusal.CUSTOM_BACKWARD.error(function=name)
        spec = self.effects.specs.get(loss)
        if spec is None or spec.shape or not spec.dtype.is_floating_point or not spec.needs_grad:
            raise Refusal.NO_LOSS.error()
        for constant in constants:
            size, most = constant.tensor.nbytes, SMALL_CONSTANT_BYTES
            if size > most:
                raise Refusal.LARGE.error(name=constant.name, size_bytes=size, most_bytes=most)

    def _refuse_mutated_inputs(self) -> None:
        named = {
            **{node: f"the parameter {name}" for node, name in self.parameters.items()},
            **{node: f"the buffer {constant.name}" for node, constant in self.constants.items()},
            **{node: f"the batch's entry {name}" for node, name in self.batch.items()},
        }
        for node, call in self.effects.mutated_inputs.items():
            raise Refusal.CHANGED_IN_PLACE.error(what=named[node], place=place_of(call))

    def _parameter_dtype(self, used: Iterable[fx.Node]) -> torch.dtype:
        first: dict[torch.dtype, str] = {}
        for node in used:
            first.setdefault(self.effects.specs[node].dtype, self.parameters[node])
        if len(first) > 1:
            kinds = ", ".join(f"{name} is {_short(dtype)}" for dtype, name in first.items())
            raise Refusal.DTYPES.error(kinds=kinds)
        if not first:
            raise Refusal.NO_PARAMETER.error()
        dtype, name = next(iter(first.items()))
        if not dtype.is_floating_point:
            raise Refusal.NOT_REAL.error(name=name, dtype=_short(dtype))
        return dtype


def _refuse_unfaithful(node: fx.Node) -> None:
    """Raises: ModelError with the place, unless the call gives tensors whose gradients we keep."""
    place, target = place_of(node), node.target
    if is_region(node):
        if str(target) not in _REGIONS:
            raise Refusal.REGION.error(target=target, place=place)
    elif not _gives_tensors(node.meta.get("val")):
        raise Refusal.NOT_TENSORS.error(target=target, place=place)
    elif getattr(target, "_schema", None) and bind(node).get("sparse") is True:
        raise Refusal.SPARSE.error(what=f"the gradient of {target} at {place}")
    if isinstance(node.meta.get("val"), list | tuple) and not all(map(is_getitem, node.users)):
        raise Refusal.NOT_TENSORS.error(target=target, place=place)


def _gives_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_gives_tensors(item) for item in value)
    return value is None or isinstance(value, torch.Tensor)


def _constant_of(model: nn.Module, exported: ExportedProgram, target: str) -> Constant:
    """A buffer or lifted tensor by its name in the exported program, as values on the CPU.

    Raises: ModelError if it has no values of its own, or is a parameter's memory.
    """
    source = exported.constants if target in exported.constants else exported.state_dict
    found = source[target]
    if not isinstance(found, torch.Tensor):
        raise Refusal.RANDOMNESS.error(generator=f"a {type(found).__name__} ({target})")
    if isinstance(found, FakeTensor):
        raise Refusal.LOST_SIGHT.error(name=target)
    if found.layout is not torch.strided:
        raise Refusal.SPARSE.error(what=f"the buffer {target}")
    tensor = found.detach()
    for name, parameter in model.named_parameters():
        if parameter.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            raise Refusal.HELD_ASIDE.error(name=name)
    if tensor.is_meta:
        raise Refusal.NO_VALUES.error(name=target)
    return Constant(target, tensor.cpu())


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
        raise Refusal.RETURNS.error(model=type(model).__name__, what=what)
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
