"""Costs of all operations of a graph in bytes and kernels, in the order in which they run.

Memory counts where it is made: memory that autograd keeps belongs to the call that allocated it,
once, no matter how many calls keep it and through which views. So the sum over consecutive
operations is the memory that they keep, besides the values that they take from outside.

Of a span that is computed again in backward, only inputs and outputs are kept. All other memory of
the span exists again while the backward is in the span. It counts as transient, because this
memory never exists for two spans at once.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import fx

from atom.graph.chain import Chain, Kernel, Operation, Seconds, Value
from atom.graph.costs.call_cost import CallCost, dissect, form_key
from atom.graph.ir import ValueSpec, padded_elements
from atom.graph.layers import layers_of
from atom.graph.traced import Graph, arguments_of, is_getitem, layer_path, shared_values


def operation_costs(graph: Graph, fused: bool = False) -> Chain:
    """Return the costs of a graph: one operation per entry of `graph.calls`, without seconds.

    The peak memory of a sub-model is the maximum over its operations i of: the bytes kept by
    operations up to i, the transient bytes of i, and the gradients of the parameters of operations
    after i (in the parameters' precision, held until the backward ends). In addition it holds its
    inputs and outputs, and the gradients of its outputs.

    Args:
        graph: the traced model.
        fused: assume the kernels of a GPU, which keep less memory for backward than a CPU's.
    """
    return _CostCollector(graph, fused).finish()


def operation_chain(graph: Graph, costs: Chain, seconds: Sequence[Seconds], fused: bool) -> Chain:
    """Return the costs of a graph in memory and in seconds: one operation per call.

    Args:
        graph: the traced model.
        costs: result of `operation_costs` for the graph.
        seconds: forward and backward seconds of each call in `graph.calls`. If backward computes a
            call again, its backward seconds include that.
        fused: as given to `operation_costs`.

    Returns:
        `costs` with seconds. If the model requests recomputation, `remembering` has the costs
        without it.
    """
    chain = _timed(costs, seconds)
    if not graph.recomputed:
        return chain
    once = list(seconds)
    for position in (p for span in graph.recomputed for p in range(*span)):
        # A call's share of measured backward seconds may be smaller than its forward seconds.
        backward_s = max(0.0, once[position].backward_s - once[position].forward_s)
        once[position] = replace(once[position], backward_s=backward_s)
    return replace(chain, remembering=_timed(operation_costs(graph.remembering(), fused), once))


def _timed(chain: Chain, seconds: Sequence[Seconds]) -> Chain:
    each = zip(chain.operations, seconds, strict=True)
    return replace(chain, operations=tuple(replace(one, **vars(s)) for one, s in each))


@dataclass
class _Memory:
    """Memory of a tensor and its views: maker, last user, and whether autograd keeps it."""

    made_by: int
    """Position of the call that makes it; -1 for the batch, parameters and constants."""
    size_bytes: int
    last_used_by: int
    kept: bool = False
    """True if it is kept from forward to backward."""
    kept_within: bool = False
    """True if it is kept only while its span is computed again and runs its backward."""
    has_gradient: bool = False


class _CostCollector:
    """One pass over the calls of a graph that collects their costs and memory."""

    def __init__(self, graph: Graph, fused: bool) -> None:
        self._graph = graph
        self._fused = fused
        self._known: dict[Hashable, CallCost] = {}
        self._memories = {"": _Memory(-1, 0, -1, kept=True)}
        """Memory by its name in `ValueSpec.memory`."""
        self._costs: list[CallCost] = []
        self._layers = [layer for layer in layers_of(graph) for _ in layer.calls]
        """Layer of each call."""
        self._spans = {p: span for span in graph.recomputed for p in range(*span)}
        for position, node in enumerate(graph.calls):
            self._call(position, node)

    def finish(self) -> Chain:
        kept, kept_within = self._kept()
        transient = self._transient(kept, kept_within)
        layout = self._graph.layout.by_name
        operations = tuple(
            Operation(
                name=_name_of(node, self._layers[position].name),
                parameters=self._parameters(node),
                forward_s=0.0,
                backward_s=0.0,
                working_bytes=kept[position],
                transient_bytes=transient[position],
                forward=self._costs[position].forward,
                backward=(
                    *(self._costs[position].forward if position in self._spans else ()),
                    *self._costs[position].backward,
                    *self._additions(node),
                ),
                frozen=frozenset(n for n in self._parameters(node) if layout[n].frozen),
            )
            for position, node in enumerate(self._graph.calls)
        )
        return Chain(operations, tuple(self._values()), self._graph.forbidden_cuts)

    def _call(self, position: int, node: fx.Node) -> None:
        arguments = arguments_of(node)
        for memory in (m for argument in arguments for m in self._memories_of(argument)):
            memory.last_used_by = position
            memory.kept |= self._crosses(memory, position)
        cost = CallCost() if is_getitem(node) else self._cost(node, arguments)
        self._costs.append(cost)
        for spec in self._results(node):
            memory_of_result = _Memory(position, spec.memory_bytes, position)
            memory = self._memories.setdefault(spec.memory, memory_of_result)
            memory.has_gradient |= spec.needs_grad
        taken = [memory for argument in arguments for memory in self._memories_of(argument)]
        given = self._memories_of(node)
        for memory in (
            *(taken[index] for index in cost.keeps_arguments),
            *(given[index] for index in cost.keeps_results),
        ):
            if position in self._spans and not self._crosses(memory, position):
                memory.kept_within = True
            else:
                memory.kept = True

    def _cost(self, node: fx.Node, arguments: Sequence[fx.Node]) -> CallCost:
        specs = tuple(self._graph.specs[argument] for argument in arguments)
        key = form_key(node, specs)
        if key not in self._known:
            self._known[key] = dissect(node, specs, self._fused)
        return self._known[key]

    def _results(self, node: fx.Node) -> tuple[ValueSpec, ...]:
        several = self._graph.several
        return several[node] if node in several else (self._graph.specs[node],)

    def _memories_of(self, node: fx.Node) -> list[_Memory]:
        return [self._memories[spec.memory] for spec in self._results(node)]

    def _crosses(self, memory: _Memory, position: int) -> bool:
        """Return True if a call uses memory that was made outside of its span, or in another span.

        Such memory is kept, because recomputing a span needs all its inputs.
        """
        return self._spans.get(memory.made_by) != self._spans.get(position)

    def _kept(self) -> tuple[list[int], list[int]]:
        """Return the bytes made by each call that are kept.

        Returns:
            Bytes kept from forward to backward, and bytes kept only during the backward of the
            call's span.
        """
        kept, within = [0] * len(self._costs), [0] * len(self._costs)
        for position, cost in enumerate(self._costs):
            (within if position in self._spans else kept)[position] = cost.keeps_more_bytes
        for memory in self._memories.values():
            if memory.kept:
                kept[memory.made_by] += memory.size_bytes
            elif memory.kept_within:
                within[memory.made_by] += memory.size_bytes
        return kept, within

    def _transient(self, kept: Sequence[int], within: Sequence[int]) -> list[int]:
        """Return the transient bytes of each call.

        In forward these are live values that are not kept, and scratch memory. In backward they are
        gradients of values that both an earlier and a later call use, and the memory that the
        backward of this call takes. In a span both happen during the backward, in addition to the
        memory that the earlier calls of the span and the call itself keep.
        """
        calls, memories = len(self._costs), self._memories.values()
        unkept = _live_bytes((m for m in memories if not (m.kept or m.kept_within)), calls)
        pending = _live_bytes((m for m in memories if m.has_gradient), calls, later=1)
        added, transient = self._gradient_sum_bytes(), list[int]()
        for position, cost in enumerate(self._costs):
            first, end = self._spans.get(position, (position, position))
            waiting = pending[end - 1] if position in self._spans else 0
            scratch = max(0, cost.forward_peak_bytes - kept[position] - within[position])
            forward = waiting + unkept[position] + scratch
            backward = pending[position] + max(cost.backward_peak_bytes, added[position])
            transient.append(sum(within[first : position + 1]) + max(forward, backward))
        return transient

    def _gradient_sum_bytes(self) -> list[int]:
        """Return the bytes for sums of parameter gradients, per call; 0 for most calls.

        A call counts if its backward gives the second gradient of a parameter (or of a view of one)
        in its layer. PyTorch then allocates the sum of both; it adds later gradients in place. The
        result is the bytes of these sums and of all gradients that the call gives.
        """
        graph, behind = self._graph, Counter[tuple[fx.Node, int]]()
        added, layers = [0] * len(graph.calls), list(map(id, self._layers))
        for position, node in reversed(list(enumerate(graph.calls))):
            given = {a: s for a in arguments_of(node) if (s := graph.specs.get(a)) and s.needs_grad}
            used = [a for a, spec in given.items() if self._memories[spec.memory].made_by < 0]
            sums = sum(given[a].size_bytes for a in used if behind[a, layers[position]] == 1)
            if sums:
                added[position] = sums + sum(spec.size_bytes for spec in given.values())
            behind.update((a, layers[position]) for a in used)
        return added

    def _parameters(self, node: fx.Node) -> dict[str, int]:
        layout, names = self._graph.layout.by_name, self._graph.parameters
        used = (names[argument] for argument in arguments_of(node) if argument in names)
        return {name: padded_elements(layout[name].numel) for name in used}

    def _additions(self, node: fx.Node) -> Iterable[Kernel]:
        """Yield the kernels that add gradients: of a result with several users, of parameters."""
        graph, spec = self._graph, self._graph.specs.get(node)
        users = sum(user in graph.call_set for user in node.users)
        if spec is not None and spec.needs_grad and users > 1:
            yield from [Kernel(0.0, 3 * spec.size_bytes, spec.dtype)] * (users - 1)
        for argument in arguments_of(node):
            if argument in graph.parameters and graph.specs[argument].needs_grad:
                given = graph.specs[argument]
                moved = given.size_bytes + 2 * math.prod(given.shape) * torch.float32.itemsize
                yield Kernel(0.0, moved, torch.float32)

    def _values(self) -> Iterable[Value]:
        """Yield the values that calls use. Tensors that share memory are one value."""
        graph = self._graph
        position = {node: index for index, node in enumerate(graph.calls)}
        same = shared_values(graph)
        together: dict[str, list[fx.Node]] = {}
        for node in (*graph.batch, *graph.calls):
            used = node is graph.loss or any(user in position for user in node.users)
            if node in graph.specs and used:
                name = graph.specs[node].memory or f"{node.name} alone"
                together.setdefault(name, []).append(node)
        for nodes in together.values():
            first, specs = position.get(nodes[0], -1), [graph.specs[node] for node in nodes]
            memory = self._memories[specs[0].memory]
            is_own = memory.made_by < 0  # of the batch, or copied out of a parameter's memory
            users = {position[user] for node in nodes for user in node.users if user in position}
            yield Value(
                size_bytes=specs[0].size_bytes if is_own else memory.size_bytes,
                made_by=first if is_own else memory.made_by,
                last_used_by=max(users, default=first),
                used_by=tuple(sorted(users)),
                has_gradient=any(spec.needs_grad for spec in specs),
                shared=same.issuperset(nodes),
            )


def _live_bytes(memories: Iterable[_Memory], calls: int, later: int = 0) -> list[int]:
    """Return the bytes of live memory at each call.

    Memory is live at a call if it was made before the call, and is used at the call or later. With
    `later`, the last use must be at least that many calls later.
    """
    change = [0] * (calls + 1)
    for memory in memories:
        first, last = memory.made_by + 1, memory.last_used_by + 1 - later
        if first < last:
            change[first] += memory.size_bytes
            change[last] -= memory.size_bytes
    return list(accumulate(change))[:calls]


def _name_of(node: fx.Node, layer: str) -> str:
    """Return a readable name of a call: the module's path (else the layer) and the operator."""
    path = layer_path(node)
    operator = getattr(node.target, "_opname", getattr(node.target, "__name__", "call"))
    return f"{path[-1][0] if path else layer} {operator}"
