"""Conversion of an exported program to a `Graph`; refuses by name what would not be faithful."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from atom.graph import traced
from atom.graph.ir import ParameterLayout, ValueSpec
from atom.graph.layers import numbered_module
from atom.graph.traced import Constant, Graph, Span
from atom.graph.tracing.effects import Effects, observe
from atom.graph.tracing.refusals import Refusal, name_of

CONSTANT_BYTES = 16 * 2**20
"""Limit for all buffers together; equal ones count once. The device holds them permanently."""

_REGIONS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
"""Supported nested graphs: `with torch.no_grad()` and `with torch.autocast(…)`."""

PRODUCTS = frozenset({"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum"})
SAME_MATRIX = frozenset(
    {"t", "transpose", "permute", "numpy_T", "view", "reshape", "contiguous", "to", "_to_copy"}
)
"""Operations that give the same matrix, with its axes in another order or in another dtype."""


def read_exported(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    exported: ExportedProgram,
    mode: FakeTensorMode,
    gives_loss: bool,
) -> Graph:
    """Convert an exported program to a graph.

    Args:
        model: the model that was exported.
        batch: example batch in the order of forward's arguments.
        exported: result of `torch.export`.
        mode: mode for the fake tensors on which the graph is run once.
        gives_loss: require a scalar loss with a gradient.

    Raises:
        ModelError: the graph would not compute the model faithfully; the message names the reason.
    """
    # Check before the graph is run: a functorch call without its counterpart would corrupt the
    # state of torch.
    for node in exported.graph.nodes:
        if "_functorch" in str(getattr(node.target, "__module__", "")):
            what = "torch.vmap or torch.func"
            raise Refusal.UNFAITHFUL.error(what=what, place=traced.place_of(node))
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
            constants[node] = _constant_of(model, exported, node, spec.target or "")
    names = dict(zip(entries, batch, strict=True))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    values = [node.meta["val"] for node in placeholders]
    with mode:
        fakes = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values]
    for node, fake in zip(placeholders, fakes, strict=True):
        fake.requires_grad_(node in parameters and parameters[node] not in frozen)
    effects = observe(exported.graph_module, fakes, mode)
    owned = {node: f"the parameter {name}" for node, name in parameters.items()}
    owned |= {node: f"the buffer {constant.name}" for node, constant in constants.items()}
    for node, call in effects.mutated_inputs.items():
        what = owned.get(node) or f"the batch's entry {names[node]}"
        raise Refusal.CHANGED_IN_PLACE.error(what=what, place=traced.place_of(call))
    loss = _result(model, exported, effects.specs, gives_loss)
    calls = _calls(exported, loss, effects)
    used = _in_order_of_use(calls, parameters)
    constants = {node: constants[node] for node in _in_order_of_use(calls, constants)}
    _check(calls, constants.values())
    shapes = {parameters[node]: effects.specs[node].shape for node in used}
    spans = _recomputed_spans(calls, loss)
    inputs = [*used, *constants, *names]
    return Graph(
        model_name=type(model).__name__,
        calls=calls,
        parameters={node: parameters[node] for node in used},
        constants=constants,
        batch=names,
        loss=loss,
        layout=ParameterLayout.of(shapes, hidden_matrices(calls, parameters), frozen),
        parameter_dtype=_parameter_dtype({parameters[n]: effects.specs[n].dtype for n in used}),
        specs=effects.specs,
        several=effects.several,
        forbidden_cuts=_forbidden_cuts(calls, loss, effects, spans),
        graph_hash=traced.graph_hash(inputs, calls, loss, effects.specs, constants, spans),
        recomputed=spans,
    )


def _calls(exported: ExportedProgram, loss: fx.Node, effects: Effects) -> tuple[fx.Node, ...]:
    """Return the calls that the loss needs, that draw random numbers, or that change memory."""
    live = {loss}
    body = [
        node
        for node in exported.graph.nodes
        if node.op == "call_function" and not traced.is_assertion(node)
    ]
    for node in reversed(body):
        if node in live or traced.is_random(node) or node in effects.mutating:
            live.add(node)
            live.update(node.all_input_nodes)
    return tuple(node for node in body if node in live)


def _check(calls: Sequence[fx.Node], constants: Iterable[Constant]) -> None:
    """Check all calls and the size of the constants.

    Raises:
        ModelError: a call would not be computed faithfully, or the constants are too large.
    """
    functions: dict[str, Any] = {}
    for node in calls:
        _refuse_unfaithful(node)
        for inner in traced.with_nested(node):
            name = traced.operator_text(inner.target)
            if functions.setdefault(name, inner.target) is not inner.target:
                raise Refusal.CUSTOM_BACKWARD.error(function=name)
    sizes = {_identity(each.tensor): (each.tensor.nbytes, each.name) for each in constants}
    total = sum(size for size, _ in sizes.values())
    if total > CONSTANT_BYTES:
        size, name = max(sizes.values())
        raise Refusal.LARGE.error(name=name, size=size, total=total, most=CONSTANT_BYTES)


def _identity(constant: torch.Tensor) -> tuple[object, ...]:
    return constant.dtype, constant.shape, sha256(traced.tensor_bytes(constant)).digest()


def _parameter_dtype(dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    """Return the common dtype of all parameters.

    Args:
        dtypes: parameter name → dtype.

    Raises:
        ModelError: the dtypes differ, or are not floating-point.
    """
    first = {dtype: name for name, dtype in reversed(list(dtypes.items()))}
    if len(first) > 1 or not all(dtype.is_floating_point for dtype in first):
        kinds = ", ".join(f"{name} is {dtype}" for dtype, name in first.items())
        raise Refusal.DTYPES.error(kinds=kinds)
    return next(iter(first))


def _refuse_unfaithful(node: fx.Node) -> None:
    """Raise an error for a call that a program could not compute with its gradients.

    Raises:
        ModelError: the call is an unknown region, returns something else than tensors, has results
            that are not picked one by one, or gives sparse gradients. The message names its line.
    """
    place, target, value = traced.place_of(node), node.target, node.meta.get("val")
    tensors = all(each is None or isinstance(each, torch.Tensor) for each in tree_leaves(value))
    faithful = str(target) in _REGIONS if traced.is_region(node) else tensors
    picked = not isinstance(value, list | tuple) or all(map(traced.is_getitem, node.users))
    if not (faithful and picked):
        raise Refusal.UNFAITHFUL.error(what=target, place=place)
    if getattr(target, "_schema", None) and traced.bind(node).get("sparse") is True:
        raise Refusal.SPARSE.error(what=f"the gradient of {target} at {place}")


def _constant_of(
    model: nn.Module, exported: ExportedProgram, node: fx.Node, target: str
) -> Constant:
    """Return a buffer or lifted tensor of an exported program, with values on the CPU.

    Args:
        model: the model that was exported.
        exported: result of `torch.export`.
        node: placeholder of the tensor.
        target: name of the tensor in `exported`.

    Raises:
        ModelError: the tensor has no values, is sparse, or shares the memory of a parameter.
    """
    source = exported.constants if target in exported.constants else exported.state_dict
    found = source[target]
    if not isinstance(found, torch.Tensor):
        raise Refusal.RANDOMNESS.error(generator=f"a {type(found).__name__} ({target})")
    if isinstance(found, FakeTensor):
        for user in filter(traced.written_arguments, node.users):
            what = f"a parameter's data ({target})"
            raise Refusal.CHANGED_IN_PLACE.error(what=what, place=traced.place_of(user))
        places = ", ".join(dict.fromkeys(map(traced.place_of, node.users)))
        raise Refusal.OUTSIDE_MODULES.error(name=f"{target} (at {places})")
    if found.layout is not torch.strided:
        raise Refusal.SPARSE.error(what=f"the buffer {target}")
    tensor = found.detach()
    for name, parameter in model.named_parameters():
        if parameter.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            raise Refusal.OUTSIDE_MODULES.error(name=f"the parameter {name}")
    if tensor.is_meta:
        raise Refusal.NO_VALUES.error(name=target)
    return Constant(target, tensor.cpu())


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every path of a parameter, its first path: equal for all paths of a tied one."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _result(
    model: nn.Module,
    exported: ExportedProgram,
    specs: Mapping[fx.Node, ValueSpec],
    gives_loss: bool,
) -> fx.Node:
    """Return the node of the value that forward returns.

    Raises:
        ModelError: forward does not return exactly one tensor that it computed or, with
            `gives_loss`, not a scalar with a gradient.
    """
    outputs, returned = exported.graph_signature.user_outputs, exported.call_spec.out_spec
    by_name = {node.name: node for node in specs if node.op == "call_function"}
    node = by_name.get(str(outputs[0]))
    if len(outputs) != 1:
        what = f"{len(outputs)} values"
    elif node is None:
        what = "no tensor that it computed"
    elif returned and not returned.is_leaf():
        what = f"a {getattr(returned.type, '__name__', 'container')}"
    elif gives_loss and not _is_loss(specs[node]):
        gradient = "with a gradient" if specs[node].needs_grad else "without a gradient"
        what = f"a tensor {list(specs[node].shape)} {gradient}"
    else:
        return node
    raise Refusal.RETURNS.error(model=name_of(model), what=what)


def _is_loss(spec: ValueSpec) -> bool:
    return not spec.shape and spec.needs_grad and spec.dtype.is_floating_point


def _in_order_of_use(calls: Iterable[fx.Node], among: Mapping[fx.Node, Any]) -> list[fx.Node]:
    used = dict.fromkeys(node for call in calls for node in call.all_input_nodes if node in among)
    return list(used)


def _forbidden_cuts(
    calls: tuple[fx.Node, ...],
    loss: fx.Node,
    effects: Effects,
    recomputed: Iterable[Span],
) -> frozenset[int]:
    """Return the positions at which a cut would be wrong.

    These are positions between a call and the picks of its results, between the creation of memory
    and its last change in place, inside a recomputed span, and after the loss.
    """
    position = {node: index for index, node in enumerate(calls)}
    spans = [(position[first], position[last]) for first, last in effects.alias_spans]
    picks = filter(traced.is_getitem, calls)
    spans += [(position[pick.all_input_nodes[0]], position[pick]) for pick in picks]
    spans += [(first, end - 1) for first, end in recomputed]
    spans.append((position[loss], len(calls)))
    return frozenset(p for first, last in spans for p in range(first + 1, last + 1))


def _recomputed_spans(calls: Sequence[fx.Node], loss: fx.Node) -> tuple[Span, ...]:
    """Return the spans of calls that the model itself checkpoints (`torch.utils.checkpoint`).

    Tracing runs such a region like any other function and marks every call in it. Consecutive calls
    with the same mark are a span.

    A region around a whole numbered module is not a span, because sub-models are recomputed as a
    whole anyway. Neither is a region whose results no other call uses.
    """
    all_of = Counter(map(numbered_module, calls))
    spans, end = [], 0
    for mark, run in groupby(calls, _region_numbers(calls).__getitem__):
        nodes = list(run)
        end += len(nodes)
        made_in = Counter(map(numbered_module, nodes))
        whole = any(path and count == all_of[path] for path, count in made_in.items())
        if mark is not None and not whole and _has_usable_results(nodes, loss, set(calls)):
            spans.append((end - len(nodes), end))
    return tuple(spans)


def _region_numbers(calls: Iterable[fx.Node]) -> Mapping[fx.Node, int | None]:
    marks: dict[fx.Node, int | None] = {}
    for node in calls:
        if traced.is_getitem(node) and node.all_input_nodes[0] in marks:
            marks[node] = marks[node.all_input_nodes[0]]
        else:
            inner = [call for call in traced.with_nested(node) if not traced.is_region(call)]
            found = {(call.meta.get("custom") or {}).get(traced.CHECKPOINT_MARK) for call in inner}
            marks[node] = found.pop() if len(found) == 1 else None
    return marks


def _has_usable_results(nodes: Iterable[fx.Node], loss: fx.Node, calls: set[fx.Node]) -> bool:
    """Return True if calls outside a span use its results, and the span can return these results.

    A span cannot return a tuple whose elements are picked outside.
    """
    inside = set(nodes)
    users = {user for node in inside for user in node.users if user in calls - inside}
    return bool(users or loss in inside) and not any(map(traced.is_getitem, users))


def hidden_matrices(calls: Sequence[fx.Node], parameters: Mapping[fx.Node, str]) -> frozenset[str]:
    """Return the names of the hidden matrices, which map activations of one layer to the next.

    A hidden matrix is a parameter with two dimensions that is used in matrix products only, and not
    in the last one, which is the model's head. An embedding is looked up or added, so it is not a
    hidden matrix, whether it is tied to the head or not. A matrix that is used inside a nested
    region (`no_grad`, autocast) is not recognised.

    Optimizers that treat a matrix as one linear map (`atom.optim.muon`) apply to hidden matrices.

    Args:
        calls: calls of the graph, in order.
        parameters: placeholder → name; tied placeholders have the same name.
    """
    position = {call: place for place, call in enumerate(calls)}
    uses: dict[str, list[fx.Node]] = {}
    for node, name in parameters.items():
        if node.meta["val"].dim() == 2:
            uses.setdefault(name, []).extend(_uses(node, position))
    products = {use for each in uses.values() for use in each if _operation(use) in PRODUCTS}
    last = max(products, key=position.__getitem__, default=None)
    return frozenset(
        n for n, each in uses.items() if products.issuperset(each) and last not in each
    )


def _uses(node: fx.Node, live: Container[fx.Node]) -> Iterator[fx.Node]:
    """Yield the calls that use a parameter, directly or through `SAME_MATRIX` operations."""
    for user in node.users:
        if user in live and _operation(user) in SAME_MATRIX:
            yield from _uses(user, live)
        elif user in live:
            yield user


def _operation(call: fx.Node) -> str:
    """Return the name of an aten operation, without its overload."""
    return str(getattr(call.target, "overloadpacket", call.target)).removeprefix("aten.")
