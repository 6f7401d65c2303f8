"""What calls do besides computing: which values carry gradients, what is changed in place.

Both are found by running the graph once on fake tensors with gradients on, not from schemas
alone: a schema does not say which values share memory.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from atom.base.errors import ModelError
from atom.graph.ir import ValueSpec
from atom.graph.traced import bind, written_arguments
from atom.graph.tracing.refusals import Refusal, place_of, untraceable

_RUNNING_STATISTICS = {"batch_norm", "instance_norm"}
"""Operators that write their arguments `running_mean`, `running_var` though no schema says so."""


@dataclass
class Effects:
    """What one run on fake tensors showed."""

    specs: dict[fx.Node, ValueSpec] = field(default_factory=dict)
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
    try:
        with mode, torch.enable_grad():
            observer.run(*fakes)
    except ModelError as error:
        # fx appends pages to the text of whatever passes through it.
        raise ModelError(error.message, error.hint) from error.__cause__
    return observer.finish()


class _Observer(fx.Interpreter):
    def __init__(self, root: fx.GraphModule) -> None:
        super().__init__(root, garbage_collect_values=False)
        self.effects = Effects()
        # Every value stays alive during the run, so a storage's address names it.
        self._maker: dict[int, fx.Node] = {}
        self._last_change: dict[int, fx.Node] = {}

    def run_node(self, n: fx.Node) -> Any:
        inputs = [(node, self.env[node]) for node in n.all_input_nodes if node in self.env]
        tensors = [t for _, value in inputs for t in tree_leaves(value) if _is_tensor(t)]
        versions = [tensor._version for tensor in tensors]
        try:
            result = super().run_node(n)
        # An operator's own shape rule raises what it likes: a number or a shape that depends on
        # data, an operator without a rule.
        except Exception as error:
            raise untraceable(n.target, error, f" at {place_of(n)}") from error
        for tensor, version in zip(tensors, versions, strict=True):
            if tensor._version != version:
                self._changed(tensor, n)
        for tensor in self._written_by_schema(n):
            self._changed(tensor, n)
        self._made(n, result)
        return result

    def finish(self) -> Effects:
        # Asked at the end: memory made without gradient may have been written to with one.
        for node, spec in self.effects.specs.items():
            needs_grad = bool(self.env[node].requires_grad)
            self.effects.specs[node] = dataclasses.replace(spec, needs_grad=needs_grad)
        for storage, last in self._last_change.items():
            maker = self._maker[storage]
            if maker.op != "placeholder":
                self.effects.alias_spans.append((maker, last))
        return self.effects

    def _made(self, node: fx.Node, result: Any) -> None:
        if _is_tensor(result) and node.op == "call_function":
            _require_gradient_as_traced(node, result)
        for tensor in tree_leaves(result):
            if _is_tensor(tensor):
                if tensor.layout is not torch.strided:  # nobody can say what memory it shares
                    what = f"the value of {node.target} at {place_of(node)}"
                    raise Refusal.SPARSE.error(what=what)
                self._maker.setdefault(_storage(tensor), node)
        if _is_tensor(result):
            maker = self._maker[_storage(result)]
            made = maker.op != "placeholder"
            self.effects.specs[node] = ValueSpec(
                tuple(result.shape),
                result.dtype,
                memory=maker.name if made else "",
                memory_bytes=result.untyped_storage().nbytes() if made else 0,
            )

    def _changed(self, tensor: torch.Tensor, node: fx.Node) -> None:
        storage = _storage(tensor)
        self.effects.mutating.add(node)
        self._last_change[storage] = node
        maker = self._maker[storage]
        if maker.op == "placeholder":
            self.effects.mutated_inputs.setdefault(maker, node)

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
        return [t for node in written for t in tree_leaves(self.env[node]) if _is_tensor(t)]


def _require_gradient_as_traced(node: fx.Node, result: torch.Tensor) -> None:
    """Tracing notes whether each result carried a gradient when the user's code made it.

    Raises: ModelError where the graph does otherwise: tracing lost a region.
    """
    carried = getattr(node.meta.get("tensor_meta"), "requires_grad", result.requires_grad)
    if carried != result.requires_grad:
        kinds = ("no gradient", "one") if carried else ("a gradient", "none")
        found = "{} in the graph, and {} in the model".format(*kinds)
        raise Refusal.GRADIENT_LOST.error(place=place_of(node), found=found)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
