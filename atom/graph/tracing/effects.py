"""Properties of calls that tracing does not record: gradients, shared memory, changes in place.

One run of the graph on fake tensors with gradients enabled shows them. Schemas alone do not
suffice, because a schema does not state which values share memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from atom.graph.ir import ValueSpec
from atom.graph.traced import bind, place_of, storage_of, tensors_of, written_arguments
from atom.graph.tracing.refusals import Refusal, untraceable

_RUNNING_STATISTICS = {"batch_norm", "instance_norm"}
"""Operators that write `running_mean` and `running_var`, although their schemas do not say so."""


def observe(root: fx.GraphModule, fakes: Sequence[torch.Tensor], mode: FakeTensorMode) -> "Effects":
    """Run a graph on fake tensors and record the effects of its calls.

    Args:
        root: the exported module.
        fakes: one fake tensor per placeholder, in order, with the right `requires_grad`.
        mode: mode to which the fake tensors belong.

    Raises:
        ModelError: shapes do not determine the result of a call; the message names its line.
    """
    effects = Effects(root)
    with mode, torch.enable_grad():
        effects.run(*fakes)
    effects.finish()
    return effects


class Effects(fx.Interpreter):
    """Observations of one run on fake tensors."""

    def __init__(self, root: fx.GraphModule) -> None:
        super().__init__(root, garbage_collect_values=False)
        self.extra_traceback = False  # it would add pages to the text of an error
        self.specs: dict[fx.Node, ValueSpec] = {}
        """Forms of the values of nodes that give one tensor."""
        self.several: dict[fx.Node, tuple[ValueSpec, ...]] = {}
        """Forms of the results of nodes that give several tensors, or none."""
        self.mutating: set[fx.Node] = set()
        """Calls that change memory in place."""
        self.mutated_inputs: dict[fx.Node, fx.Node] = {}
        """Placeholder → the first call that changes it in place."""
        self.alias_spans: list[tuple[fx.Node, fx.Node]] = []
        """Pairs (call that makes memory, last call that changes that memory in place)."""
        # Every value stays alive during the run, so addresses identify storages.
        self._maker: dict[int, fx.Node] = {}
        self._names: dict[int, str] = {}
        """Storage → name of the memory, if a call made it."""
        self._last_change: dict[int, fx.Node] = {}

    def run_node(self, n: fx.Node) -> Any:
        inputs = [t for node in n.all_input_nodes for t in tensors_of(self.env.get(node))]
        versions = [tensor._version for tensor in inputs]
        try:
            result = super().run_node(n)
        # The shape rule of an operator may raise any exception: for results that depend on data, or
        # because the operator has no rule.
        except Exception as error:
            raise untraceable(n.target, error, f" at {place_of(n)}") from error
        written = [t for t, before in zip(inputs, versions, strict=True) if t._version != before]
        for tensor in [*written, *self._written_by_schema(n)]:
            self._record_change(tensor, n)
        self._record_result(n, result)
        return result

    def finish(self) -> None:
        """Record the forms of all values.

        A later call may have written values with gradients into memory without one.
        """
        for node, value in self.env.items():
            specs = tuple(spec_of(tensor, self._names) for tensor in tensors_of(value))
            if isinstance(value, torch.Tensor):
                self.specs[node] = specs[0]
            else:
                self.several[node] = specs
        for storage, last in self._last_change.items():
            if self._maker[storage].op != "placeholder":
                self.alias_spans.append((self._maker[storage], last))

    def _record_result(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor) and node.op == "call_function":
            _require_gradient_as_traced(node, result)
        for number, tensor in enumerate(tensors_of(result)):
            if tensor.layout is not torch.strided:  # its sharing of memory cannot be observed
                what = f"the value of {node.target} at {place_of(node)}"
                raise Refusal.SPARSE.error(what=what)
            if self._maker.setdefault(storage_of(tensor), node).op != "placeholder":
                name = f"{node.name}.{number}" if number else node.name
                self._names.setdefault(storage_of(tensor), name)

    def _record_change(self, tensor: torch.Tensor, node: fx.Node) -> None:
        storage = storage_of(tensor)
        self.mutating.add(node)
        self._last_change[storage] = node
        maker = self._maker[storage]
        if maker.op == "placeholder":
            self.mutated_inputs.setdefault(maker, node)

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
    """Raise an error if a result has a gradient in the graph but not in the model, or vice versa.

    Tracing records whether each result required a gradient when the user's code made it.

    Raises:
        ModelError: they differ, so tracing has lost a region.
    """
    carried = getattr(node.meta.get("tensor_meta"), "requires_grad", result.requires_grad)
    if carried != result.requires_grad:
        kinds = ("no gradient", "one") if carried else ("a gradient", "none")
        found = "{} in the graph, and {} in the model".format(*kinds)
        raise Refusal.GRADIENT_LOST.error(place=place_of(node), found=found)


def spec_of(tensor: torch.Tensor, memory_names: Mapping[int, str]) -> ValueSpec:
    """Return the form of a tensor.

    Args:
        tensor: a tensor of the graph.
        memory_names: names of the memory that calls made, by `storage_of`.
    """
    memory = memory_names.get(storage_of(tensor), "")
    return ValueSpec(
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        dtype=tensor.dtype,
        needs_grad=tensor.requires_grad,
        memory=memory,
        memory_bytes=tensor.untyped_storage().nbytes() if memory else 0,
    )
