"""Traced graph: a model as one flat list of aten calls, the result of tracing.

Terms: a *value* is one tensor of one micro-batch. A batch entry keeps its own name; every other
value has the name of the call that made it. A *position* is an index of a call; a cut at p
separates call p-1 from call p.

The hash identifies a graph by its computations and shapes; names do not influence it.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from atom.graph.ir import ParameterLayout, ValueSpec

Span = tuple[int, int]
"""Range of positions [first, end)."""

CHECKPOINT_MARK = "atom_checkpoint"
"""Key of a traced call's metadata for the number of the checkpointed region that made it."""

FUNCTIONS = "atom_function"
"""Namespace of the operators that represent custom `autograd.Function`s."""

_PYTORCH = ("aten", "prims")


@dataclass(frozen=True)
class Constant:
    """Buffer, or tensor that the model's forward makes from numbers. `tensor` is on the CPU."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Graph:
    """Traced model. Its fx nodes must not be changed."""

    model_name: str
    calls: tuple[fx.Node, ...]
    """Calls in topological order, without assertions.

    Unused calls are absent, except calls that draw random numbers or change memory in place.
    """
    parameters: Mapping[fx.Node, str]
    """Placeholder → name in the layout."""
    constants: Mapping[fx.Node, Constant]
    batch: Mapping[fx.Node, str]
    """Placeholder → name of the batch's entry, in the order of the model's forward arguments."""
    loss: fx.Node
    """Returned value: the mean loss, or any tensor if traced without `gives_loss`."""
    layout: ParameterLayout
    parameter_dtype: torch.dtype
    specs: Mapping[fx.Node, ValueSpec]
    """Forms of the values, except of nodes in `several`."""
    several: Mapping[fx.Node, tuple[ValueSpec, ...]]
    """Forms of the results of nodes that return several tensors, or none."""
    forbidden_cuts: frozenset[int]
    """Positions at which a cut would give wrong results or divide a span of `recomputed`."""
    graph_hash: str
    recomputed: tuple[Span, ...] = ()
    """Spans of calls that the model itself checkpoints: only their inputs and outputs are kept for
    backward, which computes all other values again."""

    @cached_property
    def call_set(self) -> frozenset[fx.Node]:
        """Calls of the graph, for fast membership tests."""
        return frozenset(self.calls)

    def remembering(self) -> "Graph":
        """Return the same model without recomputation: all values are kept for backward."""
        return replace(self, recomputed=())

    @cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Operators that represent custom `autograd.Function`s, by `operator_text`."""
        targets: Iterator[Any] = (n.target for call in self.calls for n in with_nested(call))
        own = (each for each in targets if getattr(each, "namespace", "") == FUNCTIONS)
        return {operator_text(each): each for each in own}

    @cached_property
    def own_backwards(self) -> bool:
        """True if any operator is not PyTorch's own. Its backward need not be linear."""
        return not all(_is_pytorch(inner) for call in self.calls for inner in with_nested(call))

    @cached_property
    def span_of(self) -> Mapping[fx.Node, Span]:
        """Call → span of `recomputed` that contains it. Calls outside all spans are absent."""
        return {node: span for span in self.recomputed for node in self.calls[slice(*span)]}

    def value_name(self, node: fx.Node) -> str:
        """Return the name of a batch entry or of a call's result, as used between sub-models."""
        if node in self.batch:
            return self.batch[node]
        taken = node.name in self.batch.values()
        return f"{node.name}_" if taken else node.name


def is_getitem(node: fx.Node) -> bool:
    """Return True if the node picks one result of a call that returns several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_assertion(node: fx.Node) -> bool:
    """Return True for checks of metadata that tracing adds; static shapes make them redundant."""
    return "_assert_tensor_metadata" in str(node.target)


def is_region(node: fx.Node) -> bool:
    """Return True if the call runs a nested graph (`no_grad`, autocast)."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def layer_path(node: fx.Node) -> list[tuple[str, str]]:
    """Return the modules in which a call was made, outermost first.

    Returns:
        Pairs (path, qualified class name). At the second call of a module, its path ends in "@1".
    """
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (path + key[key.index("@") :] if "@" in key and "@" not in path else path, str(kind))
        for key, (path, kind) in stack.items()
        if path
    ]


def operator_text(target: Any) -> str:
    """Return the name of an operator, equal in all processes: `aten.add.Tensor`."""
    own = getattr(target, "namespace", "") == FUNCTIONS
    return str(target._opname if own else target)


def nested_graph(node: fx.Node) -> fx.GraphModule:
    """Return the graph to which a `get_attr` node refers."""
    owner = node.graph.owning_module
    assert isinstance(owner, fx.GraphModule)
    nested = owner.get_submodule(str(node.target))
    assert isinstance(nested, fx.GraphModule)
    return nested


def with_nested(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the call itself and, for a region, the calls inside it."""
    yield node
    for argument in node.args:
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            for inner in nested_graph(argument).graph.nodes:
                if inner.op == "call_function":
                    yield from with_nested(inner)


def arguments_of(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose tensors a call reads, each once, and none for a nested graph."""
    return [argument for argument in node.all_input_nodes if argument.op != "get_attr"]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested structure, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    """Return an identifier of a tensor's memory, equal for tensors that share it."""
    return int(tensor.untyped_storage()._cdata)


def bind(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of a call by their names in the operator's schema, without defaults."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def written_arguments(node: fx.Node) -> list[str]:
    """Return the names of the arguments that a call changes in place, according to its schema."""
    schema = getattr(node.target, "_schema", None)
    return [
        argument.name
        for argument in getattr(schema, "arguments", ())
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def is_random(node: fx.Node) -> bool:
    """Return True if the call draws from the default random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_repeatable(call: fx.Node) -> bool:
    """Return True if the call is known to give equal results for equal arguments.

    Only PyTorch's own operators declare random numbers. Other operators may draw them, or count
    their calls, without declaring it.
    """
    return _is_pytorch(call) and not is_random(call)


def _is_pytorch(call: fx.Node) -> bool:
    target = call.target
    return not isinstance(target, torch._ops.OpOverload) or target.namespace in _PYTORCH


def shared_values(graph: Graph) -> frozenset[fx.Node]:
    """Return the calls whose results are the same in every micro-batch (masks, rotary tables).

    Their results depend on sizes and constants only, not on batch entries, parameters or random
    numbers. So one result of each serves any number of micro-batches.
    """
    shared: set[fx.Node] = set()
    # Other values that descend from a shared one: they might share its memory.
    touched: set[fx.Node] = set()
    for node in graph.calls:
        given = arguments_of(node)
        same = all(argument in shared or argument in graph.constants for argument in given)
        if same and all(map(is_repeatable, with_nested(node))):
            shared.add(node)
        elif any(argument in shared or argument in touched for argument in given):
            if any(map(written_arguments, with_nested(node))):
                return frozenset()
            touched.add(node)
    return frozenset(shared)


def place_of(node: fx.Node) -> str:
    """Return "file:line" of the user's code that made a call (for a region, its first call)."""
    return next(filter(None, map(_source_line, with_nested(node))), node.name)


def _source_line(node: fx.Node) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    users = [f"{f}:{line}" for f, line in frames if not re.search("/torch/|/atom/graph/", f)]
    return users[-1] if users else ""


def drawing_place(graph: Graph) -> str:
    """Return "file:line" of the first call that draws random numbers, or an empty string."""
    for call in graph.calls:
        for node in with_nested(call):
            if is_random(node) and not _drops_nothing(bind(node)):
                return place_of(node)
    return ""


def _drops_nothing(arguments: Mapping[str, Any]) -> bool:
    """Return True for dropout in evaluation mode or with probability 0 (attention's default)."""
    if arguments.get("train") is False:
        return True
    otherwise = 0.0 if "query" in arguments else None
    return bool(arguments.get("p", arguments.get("dropout_p", otherwise)) == 0)


def graph_hash(
    inputs: Sequence[fx.Node],
    calls: Sequence[fx.Node],
    loss: fx.Node,
    specs: Mapping[fx.Node, ValueSpec],
    constants: Mapping[fx.Node, Constant],
    recomputed: Sequence[Span] = (),
) -> str:
    """Return the SHA-256 (hexadecimal) that identifies a graph.

    It covers operators, arguments, shapes, dtypes, gradients, the values of constants, and the
    recomputed spans. A tied parameter is one input that is used twice, so ties are covered too.

    Args:
        inputs: placeholders in canonical order: parameters in layout order, constants, batch
            entries.
        calls: calls in order.
        loss: node of the returned value.
        specs: forms of the values.
        constants: values of the constant placeholders.
        recomputed: spans that backward computes again.
    """
    digest = hashlib.sha256()
    index: dict[fx.Node, int] = {}
    for node in inputs:
        index[node] = len(index)
        digest.update(f"input {_spec(specs[node])}\n".encode())
        if node in constants:
            digest.update(hashlib.sha256(tensor_bytes(constants[node].tensor)).digest())
    for line in _lines(calls, index, specs):
        digest.update(line.encode())
    digest.update(f"loss %{index[loss]}".encode())
    if recomputed:
        digest.update(f"recomputed {list(recomputed)}".encode())
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return the elements in row-major order; little-endian, as is every supported machine."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _lines(
    calls: Iterable[fx.Node],
    index: dict[fx.Node, int],
    specs: Mapping[fx.Node, ValueSpec],
) -> Iterable[str]:
    for node in calls:
        arguments = arguments_text(node, index)
        index[node] = len(index)
        spec = _spec(specs[node]) if node in specs else "several"
        yield f"{operator_text(node.target)} {arguments} -> {spec}\n"


def arguments_text(node: fx.Node, index: Mapping[fx.Node, int]) -> str:
    """Return the arguments of a call as text, with values as numbers and nested graphs as text.

    Args:
        node: the call.
        index: node → number of its value.
    """

    def text(given: fx.Node) -> str:
        return _nested(given) if given.op == "get_attr" else f"%{index[given]}"

    return repr(map_arg((node.args, dict(sorted(node.kwargs.items()))), text))


def _nested(node: fx.Node) -> str:
    graph = nested_graph(node)
    index: dict[fx.Node, int] = {}
    lines = []
    for inner in graph.graph.nodes:
        if inner.op == "placeholder":
            index[inner] = len(index)
        elif inner.op == "call_function":
            lines += list(_lines([inner], index, {}))
        elif inner.op == "output":
            lines.append(arguments_text(inner, index))
    return "{" + "".join(lines) + "}"


def _spec(spec: ValueSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}{'*' if spec.needs_grad else ''}"
