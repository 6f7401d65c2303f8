"""What every operation of a graph costs in bytes and kernels, in the order in which they run.

Memory is counted where it is made: what autograd keeps of a tensor belongs to the call that
allocated it, once, however many calls keep it and through whichever view. So the sum over any run
of operations is what that run keeps, besides the values it takes from outside.

Of a span that is computed again in backward, what goes in and comes out is kept. The rest comes
back when the backward reaches the span and is gone when it leaves it, so it is transient: no two
spans' are there at once.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import fx

from atom.graph.chain import Chain, Kernel, Operation, Seconds, Value
from atom.graph.costs.call_cost import CallCost, Form, arguments_of, dissect, form_key
from atom.graph.ir import padded_elements
from atom.graph.layers import layers_of
from atom.graph.traced import Graph, is_getitem, layer_path, shared_values


def operation_chain(graph: Graph, seconds: Sequence[Seconds], fused: bool = False) -> Chain:
    """One operation per entry of `graph.calls`, with the seconds of a profile of this graph.

    `fused`: for a GPU, whose kernels keep less for the backward than a CPU's.

    A run of operations holds at the most, over its members i: what is kept by those up to i, the
    transient bytes of i, and gradients of the parameters of those behind i (in the parameters'
    precision, until the backward is over); besides the values it takes and gives, and the
    gradients of those it gives.

    Seconds of the backward include those of what the graph computes again.
    """
    chain = _taking(operation_costs(graph, fused), seconds)
    if not graph.recomputed:
        return chain
    once = [_once(graph, *each) for each in zip(graph.calls, seconds, strict=True)]
    return replace(chain, remembering=_taking(operation_costs(graph.remembering(), fused), once))


def operation_costs(graph: Graph, fused: bool = False) -> Chain:
    """The same, without seconds."""
    return _Walk(graph, fused).finish()


def _taking(chain: Chain, seconds: Sequence[Seconds]) -> Chain:
    each = zip(chain.operations, seconds, strict=True)
    return replace(chain, operations=tuple(replace(one, **vars(s)) for one, s in each))


def _once(graph: Graph, call: fx.Node, seconds: Seconds) -> Seconds:
    """Without the second forward of a call that is computed again."""
    if call not in graph.span_of:
        return seconds
    # Shares of a measured layer's seconds need not hold a whole forward.
    return replace(seconds, backward_s=max(0.0, seconds.backward_s - seconds.forward_s))


@dataclass
class _Memory:
    """A piece of memory: who made it, who uses it last, and whether autograd keeps it."""

    made_by: int
    """-1: not by a call (batch, parameters, constants)."""
    size_bytes: int
    last_used_by: int
    kept: bool = False
    """From forward to backward."""
    kept_within: bool = False
    """While the span that makes it is computed again and goes backward."""
    has_gradient: bool = False


@dataclass(frozen=True)
class _Place:
    form: Form
    memory: _Memory


class _Walk:
    def __init__(self, graph: Graph, fused: bool) -> None:
        self._graph = graph
        self._fused = fused
        self._known: dict[Hashable, CallCost] = {}
        self._places: dict[fx.Node, list[_Place]] = {}
        self._memories: list[_Memory] = []
        self._costs: list[CallCost] = []
        self._spans = {p: span for span in graph.recomputed for p in range(*span)}
        for node in (*graph.parameters, *graph.constants, *graph.batch):
            self._places[node] = [_Place(_given(graph, node), _Memory(-1, 0, -1, kept=True))]
        for position, node in enumerate(graph.calls):
            self._call(position, node)

    def finish(self) -> Chain:
        kept, kept_within = self._kept()
        transient = self._transient(kept, kept_within)
        layers = (layer.name for layer in layers_of(self._graph) for _ in layer.calls)
        operations = tuple(
            Operation(
                name=_name_of(node, layer),
                parameters=self._parameters(node),
                forward_s=0.0,
                backward_s=0.0,
                working_bytes=kept[position],
                transient_bytes=transient[position],
                forward=self._costs[position].forward,
                backward=(
                    *(self._costs[position].forward if position in self._spans else ()),
                    *self._costs[position].backward,
                    *self._sums(node),
                ),
                frozen=self._graph.frozen & self._parameters(node).keys(),
            )
            for position, (node, layer) in enumerate(zip(self._graph.calls, layers, strict=True))
        )
        return Chain(operations, tuple(self._values()), self._graph.forbidden_cuts)

    def _call(self, position: int, node: fx.Node) -> None:
        arguments = arguments_of(node)
        for argument in arguments:
            for place in self._places[argument]:
                place.memory.last_used_by = position
                place.memory.kept |= self._crosses(place, position)
        if is_getitem(node):
            self._places[node] = [self._places[arguments[0]][int(str(node.args[1]))]]
            self._costs.append(CallCost())
            return
        places = [self._places[argument][0] for argument in arguments]
        forms = tuple(place.form for place in places)
        key = form_key(node, forms)
        if key not in self._known:
            self._known[key] = dissect(node, forms, self._fused)
        cost = self._known[key]
        self._costs.append(cost)
        self._places[node] = made = self._made(position, cost, places)
        for place in (
            *(places[index] for index in cost.keeps_arguments),
            *(made[index] for index in cost.keeps_results),
        ):
            if position in self._spans and not self._crosses(place, position):
                place.memory.kept_within = True
            else:
                place.memory.kept = True

    def _made(self, position: int, cost: CallCost, arguments: Sequence[_Place]) -> list[_Place]:
        places: list[_Place] = []
        for result in cost.results:
            if result.alias_of is not None:
                memory = arguments[result.alias_of].memory
            elif result.new_bytes or not places:
                memory = _Memory(position, result.new_bytes, position)
                self._memories.append(memory)
            else:
                memory = places[-1].memory  # several results in one piece of memory
            memory.has_gradient |= result.form.needs_grad
            places.append(_Place(result.form, memory))
        return places

    def _crosses(self, place: _Place, position: int) -> bool:
        """Whether it goes into the span that the call at `position` is in, or comes out of one:
        whoever computes a span again holds all that went into it."""
        return self._spans.get(place.memory.made_by) != self._spans.get(position)

    def _kept(self) -> tuple[list[int], list[int]]:
        """Per call, what of its memory is kept from forward to backward, and what within the
        backward of its span."""
        kept, within = [0] * len(self._costs), [0] * len(self._costs)
        for position, cost in enumerate(self._costs):
            (within if position in self._spans else kept)[position] = cost.keeps_more_bytes
        for memory in self._memories:
            if memory.kept:
                kept[memory.made_by] += memory.size_bytes
            elif memory.kept_within:
                within[memory.made_by] += memory.size_bytes
        return kept, within

    def _transient(self, kept: Sequence[int], within: Sequence[int]) -> list[int]:
        """Forward: unkept values alive, and scratch. Backward: gradients of values that both an
        earlier and a later call use, and whatever the call's own backward takes. In a span, both
        happen in the backward, where what the span keeps within piles up to the call."""
        calls = len(self._costs)
        unkept = _alive(((m, 0) for m in self._memories if not (m.kept or m.kept_within)), calls)
        pending = _alive(((m, 1) for m in self._memories if m.has_gradient), calls)
        transient = []
        for position, cost in enumerate(self._costs):
            first, end = self._spans.get(position, (position, position))
            waiting = pending[end - 1] if position in self._spans else 0
            scratch = max(0, cost.forward_peak_bytes - kept[position] - within[position])
            forward = waiting + unkept[position] + scratch
            backward = pending[position] + cost.backward_peak_bytes
            transient.append(sum(within[first : position + 1]) + max(forward, backward))
        return transient

    def _parameters(self, node: fx.Node) -> dict[str, int]:
        layout, names = self._graph.layout.by_name, self._graph.parameters
        used = (names[argument] for argument in arguments_of(node) if argument in names)
        return {name: padded_elements(layout[name].numel) for name in used}

    def _sums(self, node: fx.Node) -> Iterable[Kernel]:
        """Gradients added up: of a result that several calls use, of parameters in float32."""
        users = sum(user in self._graph.call_set for user in node.users)
        for place in self._places[node]:
            if users > 1 and place.form.needs_grad and len(self._places[node]) == 1:
                size = place.form.size_bytes
                yield from [Kernel(0.0, 3 * size, place.form.dtype)] * (users - 1)
        for argument in arguments_of(node):
            if argument in self._graph.parameters and self._places[argument][0].form.needs_grad:
                form = self._places[argument][0].form
                moved = form.size_bytes + 2 * form.span * torch.float32.itemsize
                yield Kernel(0.0, moved, torch.float32)

    def _values(self) -> Iterable[Value]:
        position = {node: index for index, node in enumerate(self._graph.calls)}
        same = shared_values(self._graph)
        together: dict[int, list[Value]] = {}
        for number, node in enumerate((*self._graph.batch, *self._graph.calls)):
            users = sorted({position[user] for user in node.users if user in position})
            if node not in self._graph.specs or not (users or node is self._graph.loss):
                continue
            place, made_by = self._places[node][0], position.get(node, -1)
            spec, memory = self._graph.specs[node], place.memory
            own = memory.made_by < 0  # of the batch, or copied out of a parameter's memory
            value = Value(
                size_bytes=min(spec.size_bytes, place.form.size_bytes)
                if own
                else memory.size_bytes,
                made_by=made_by if own else memory.made_by,
                last_used_by=max(users, default=made_by),
                used_by=tuple(users),
                has_gradient=spec.needs_grad,
                shared=node in same,
            )
            together.setdefault(-1 - number if own else id(memory), []).append(value)
        return map(_one, together.values())


def _one(views: Sequence[Value]) -> Value:
    """Of values that share memory."""
    return replace(
        views[0],
        last_used_by=max(view.last_used_by for view in views),
        used_by=tuple(sorted({user for view in views for user in view.used_by})),
        has_gradient=any(view.has_gradient for view in views),
        shared=all(view.shared for view in views),
    )


def _alive(memories: Iterable[tuple[_Memory, int]], calls: int) -> list[int]:
    """Per call, bytes of the memory made before it and used by it, or `later` calls after it."""
    change = [0] * (calls + 1)
    for memory, later in memories:
        first, last = memory.made_by + 1, memory.last_used_by + 1 - later
        if first < last:
            change[first] += memory.size_bytes
            change[last] -= memory.size_bytes
    return list(accumulate(change))[:calls]


def _given(graph: Graph, node: fx.Node) -> Form:
    spec = graph.specs[node]
    needs_grad = spec.needs_grad
    if node in graph.parameters:
        needs_grad = graph.parameters[node] not in graph.frozen
    stride = torch.empty(spec.shape, device="meta").stride()
    return Form(spec.shape, tuple(stride), spec.dtype, needs_grad)


def _name_of(node: fx.Node, layer: str) -> str:
    """A call as a person would look for it: the module's path, else the layer, and the operator."""
    path = layer_path(node)
    operator = getattr(node.target, "_opname", getattr(node.target, "__name__", "call"))
    return f"{path[-1][0] if path else layer} {operator}"
