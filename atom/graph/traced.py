"""A model as one flat list of aten calls: what tracing gives and every later step reads.

Names: a *value* is one tensor of one micro-batch; a batch entry keeps its own name, every other
value has the name of the call that made it. A *position* counts calls; "a cut at p" separates
call p-1 from call p.

The graph's hash is its identity: what is computed, from which shapes, not how anything is called.
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
"""Positions [first, end)."""

CHECKPOINT_MARK = "atom_checkpoint"
"""Where a traced call carries the number of the checkpointed region that it was made in."""

FUNCTIONS = "atom_function"
"""Namespace of the operators that stand for custom `autograd.Function`s."""

_PYTORCH = ("aten", "prims")


@dataclass(frozen=True)
class Constant:
    """A buffer, or a tensor that the model's forward makes from numbers. `tensor` is on the CPU."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Graph:
    """A traced model. The fx nodes must not be changed."""

    model_name: str
    calls: tuple[fx.Node, ...]
    """Calls in topological order, without assertions and without what nobody uses."""
    parameters: Mapping[fx.Node, str]
    """Placeholder → name in the layout."""
    constants: Mapping[fx.Node, Constant]
    batch: Mapping[fx.Node, str]
    """Placeholder → name of the batch's entry, in the order of the model's forward arguments."""
    loss: fx.Node
    """What it returns: the mean loss, unless it was traced for something else."""
    layout: ParameterLayout
    parameter_dtype: torch.dtype
    specs: Mapping[fx.Node, ValueSpec]
    """What every tensor of the graph looks like."""
    several: Mapping[fx.Node, tuple[ValueSpec, ...]]
    """Those of nodes that give several, or none, and are absent in `specs`."""
    forbidden_cuts: frozenset[int]
    """Positions where a cut would give wrong results, or part a span of `recomputed`."""
    graph_hash: str
    recomputed: tuple[Span, ...] = ()
    """Spans of calls of which backward is given what goes in and comes out, and computes the rest
    again: regions that the model itself checkpoints."""

    @cached_property
    def call_set(self) -> frozenset[fx.Node]:
        return frozenset(self.calls)

    def remembering(self) -> "Graph":
        """The same model, where backward is given what it needs and computes nothing again."""
        return replace(self, recomputed=())

    @cached_property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The operators that stand for custom `autograd.Function`s, by `operator_text`."""
        targets: Iterator[Any] = (n.target for call in self.calls for n in with_nested(call))
        own = (each for each in targets if getattr(each, "namespace", "") == FUNCTIONS)
        return {operator_text(each): each for each in own}

    @cached_property
    def own_backwards(self) -> bool:
        """Whether it calls what is not PyTorch's own, whose backward need not be linear."""
        return not all(_is_pytorchs(inner) for call in self.calls for inner in with_nested(call))

    @cached_property
    def span_of(self) -> Mapping[fx.Node, Span]:
        """The span of `recomputed` that a call is in; other calls are absent."""
        return {node: span for span in self.recomputed for node in self.calls[slice(*span)]}

    def value_name(self, node: fx.Node) -> str:
        """The name of a batch entry or of a call's result between sub-models."""
        if node in self.batch:
            return self.batch[node]
        taken = node.name in self.batch.values()
        return f"{node.name}_" if taken else node.name


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one result of a call that gives several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_assertion(node: fx.Node) -> bool:
    """A check that tracing adds; it repeats what static shapes already say."""
    return "_assert_tensor_metadata" in str(node.target)


def is_region(node: fx.Node) -> bool:
    """Whether the call runs a nested graph: `no_grad`, autocast."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def layer_path(node: fx.Node) -> list[tuple[str, str]]:
    """The modules a call was made in, outermost first: (path, qualified class name).

    A module called for the second time has a path that ends in "@1".
    """
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (path + key[key.index("@") :] if "@" in key and "@" not in path else path, str(kind))
        for key, (path, kind) in stack.items()
        if path
    ]


def operator_text(target: Any) -> str:
    """What is called, the same in every process: `aten.add.Tensor`."""
    own = getattr(target, "namespace", "") == FUNCTIONS
    return str(target._opname if own else target)


def nested_graph(node: fx.Node) -> fx.GraphModule:
    """The graph that a `get_attr` node names."""
    owner = node.graph.owning_module
    assert isinstance(owner, fx.GraphModule)
    nested = owner.get_submodule(str(node.target))
    assert isinstance(nested, fx.GraphModule)
    return nested


def with_nested(node: fx.Node) -> Iterator[fx.Node]:
    """The call itself, and for a region the calls inside it."""
    yield node
    for argument in node.args:
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            for inner in nested_graph(argument).graph.nodes:
                if inner.op == "call_function":
                    yield from with_nested(inner)


def arguments_of(node: fx.Node) -> list[fx.Node]:
    """The tensors a call reads, each once; nested graphs are none."""
    return [argument for argument in node.all_input_nodes if argument.op != "get_attr"]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Those in a value of whatever structure, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor: torch.Tensor) -> int:
    """The same for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


def bind(node: fx.Node) -> Mapping[str, Any]:
    """Arguments of a call by their names in the operator's schema; defaults left out."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def written_arguments(node: fx.Node) -> list[str]:
    """Names of the arguments that the call's schema says are changed in place."""
    schema = getattr(node.target, "_schema", None)
    return [
        argument.name
        for argument in getattr(schema, "arguments", ())
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def is_random(node: fx.Node) -> bool:
    """Whether the call draws from the default generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def repeats(call: fx.Node) -> bool:
    """Whether the call gives the same for the same, as far as is known: no random numbers.
    Operators of others than PyTorch may draw them, or count their calls, and not say so."""
    return _is_pytorchs(call) and not is_random(call)


def _is_pytorchs(call: fx.Node) -> bool:
    target = call.target
    return not isinstance(target, torch._ops.OpOverload) or target.namespace in _PYTORCH


def shared_values(graph: Graph) -> frozenset[fx.Node]:
    """Calls whose results are the same in every micro-batch: masks, positions, rotary tables.

    They are made of sizes and constants alone: no batch entry, no parameter, no random number goes
    into them. One of each is enough for any number of micro-batches.
    """
    shared: set[fx.Node] = set()
    # Other values with a shared one among their ancestors: they might alias its memory.
    touched: set[fx.Node] = set()
    for node in graph.calls:
        given = arguments_of(node)
        same = all(argument in shared or argument in graph.constants for argument in given)
        if same and all(map(repeats, with_nested(node))):
            shared.add(node)
        elif any(argument in shared or argument in touched for argument in given):
            if any(map(written_arguments, with_nested(node))):
                return frozenset()
            touched.add(node)
    return frozenset(shared)


def place_of(node: fx.Node) -> str:
    """ "file:line" of the user's code that made a call or, for a region, its first call."""
    return next(filter(None, map(_source_line, with_nested(node))), node.name)


def _source_line(node: fx.Node) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    users = [f"{file}:{line}" for file, line in frames if "/torch/" not in file]
    return users[-1] if users else ""


def drawing_place(graph: Graph) -> str:
    """Where the graph draws random numbers; empty: nowhere."""
    for call in graph.calls:
        for node in with_nested(call):
            if is_random(node) and not _drops_nothing(bind(node)):
                return place_of(node)
    return ""


def _drops_nothing(arguments: Mapping[str, Any]) -> bool:
    """Dropout in evaluation mode, or with probability 0; attention's is 0 when left out."""
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
    """sha256 hex over operators, arguments, shapes, dtypes, gradients, constants' values, and what
    is recomputed.

    `inputs` are the placeholders in a canonical order: parameters in layout order, constants,
    batch entries. A tied parameter is one input used twice, so tying is part of the identity.
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
    """The elements in row-major order, little-endian (every machine we run on is)."""
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
    """What a call is given, values by their numbers in `index`, nested graphs as they are."""

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
