"""What calls do besides computing: which values carry gradients, what is changed in place.

Both are found by running the graph once on fake tensors with gradients on, not from schemas
alone: a schema does not say which values share memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from atom.graph.ir import ValueSpec
from atom.graph.traced import bind, place_of, storage_of, tensors_of, written_arguments
from atom.graph.tracing.refusals import Refusal, untraceable

_RUNNING_STATISTICS = {"batch_norm", "instance_norm"}
"""Operators that write their arguments `running_mean`, `running_var` though no schema says so."""


@dataclass
class Effects:
    """What one run on fake tensors showed."""

    specs: dict[fx.Node, ValueSpec] = field(default_factory=dict)
    several: dict[fx.Node, tuple[ValueSpec, ...]] = field(default_factory=dict)
    """The tensors of what gives no single one."""
    mutating: set[fx.Node] = field(default_factory=set)
    mutated_inputs: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """Placeholder → the first call that changed it in place."""
    alias_spans: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    """(call that made the memory, last call that changed it in place)."""


def observe(root: fx.GraphModule, fakes: Sequence[torch.Tensor], mode: FakeTensorMode) -> Effects:
    """Runs `root` on `fakes`, one per placeholder, in order.

    Raises: ModelError with the place of a call whose result cannot be foreseen from shapes.
    """
    observer = _Observer(root)
    with mode, torch.enable_grad():
        observer.run(*fakes)
    return observer.finish()


class _Observer(fx.Interpreter):
    def __init__(self, root: fx.GraphModule) -> None:
        super().__init__(root, garbage_collect_values=False)
        self.extra_traceback = False  # pages, in the text of an error
        self._effects = Effects()
        # Every value stays alive during the run, so a storage's address names it.
        self._maker: dict[int, fx.Node] = {}
        self._names: dict[int, str] = {}
        """Of memory that calls made."""
        self._last_change: dict[int, fx.Node] = {}

    def run_node(self, n: fx.Node) -> Any:
        inputs = [t for node in n.all_input_nodes for t in tensors_of(self.env.get(node))]
        versions = [tensor._version for tensor in inputs]
        try:
            result = super().run_node(n)
        # An operator's own shape rule raises what it likes: a number or a shape that depends on
        # data, an operator without a rule.
        except Exception as error:
            raise untraceable(n.target, error, f" at {place_of(n)}") from error
        written = [t for t, before in zip(inputs, versions, strict=True) if t._version != before]
        for tensor in [*written, *self._written_by_schema(n)]:
            self._changed(tensor, n)
        self._made(n, result)
        return result

    def finish(self) -> Effects:
        # Asked at the end: memory made without gradient may have been written to with one.
        for node, value in self.env.items():
            specs = tuple(spec_of(tensor, self._names) for tensor in tensors_of(value))
            if isinstance(value, torch.Tensor):
                self._effects.specs[node] = specs[0]
            else:
                self._effects.several[node] = specs
        for storage, last in self._last_change.items():
            if self._maker[storage].op != "placeholder":
                self._effects.alias_spans.append((self._maker[storage], last))
        return self._effects

    def _made(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor) and node.op == "call_function":
            _require_gradient_as_traced(node, result)
        for number, tensor in enumerate(tensors_of(result)):
            if tensor.layout is not torch.strided:  # nobody can say what memory it shares
                what = f"the value of {node.target} at {place_of(node)}"
                raise Refusal.SPARSE.error(what=what)
            if self._maker.setdefault(storage_of(tensor), node).op != "placeholder":
                name = f"{node.name}.{number}" if number else node.name
                self._names.setdefault(storage_of(tensor), name)

    def _changed(self, tensor: torch.Tensor, node: fx.Node) -> None:
        storage = storage_of(tensor)
        self._effects.mutating.add(node)
        self._last_change[storage] = node
        maker = self._maker[storage]
        if maker.op == "placeholder":
            self._effects.mutated_inputs.setdefault(maker, node)

    def _written_by_schema(self, node: fx.Node) -> list[torch.Tensor]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return []
        bound = bind(node)
        names = written_arguments(node)
        if schema.name.partition("::")[2] in _RUNNING_STATISTICS and (
            bound.get("training") or bound.get("use_input_stats")
        ):
            names += ["running_mean", "running_var"]
        written = [bound[name] for name in names if isinstance(bound.get(name), fx.Node)]
        return [tensor for node in written for tensor in tensors_of(self.env[node])]


def _require_gradient_as_traced(node: fx.Node, result: torch.Tensor) -> None:
    """Tracing notes whether each result carried a gradient when the user's code made it.

    Raises: ModelError where the graph does otherwise: tracing lost a region.
    """
    carried = getattr(node.meta.get("tensor_meta"), "requires_grad", result.requires_grad)
    if carried != result.requires_grad:
        kinds = ("no gradient", "one") if carried else ("a gradient", "none")
        found = "{} in the graph, and {} in the model".format(*kinds)
        raise Refusal.GRADIENT_LOST.error(place=place_of(node), found=found)


def spec_of(tensor: torch.Tensor, memory_names: Mapping[int, str]) -> ValueSpec:
    """`memory_names`: by `storage_of`, of memory that calls made."""
    memory = memory_names.get(storage_of(tensor), "")
    return ValueSpec(
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        dtype=tensor.dtype,
        needs_grad=tensor.requires_grad,
        memory=memory,
        memory_bytes=tensor.untyped_storage().nbytes() if memory else 0,
    )
