"""A graph as a plan sees it: its operations with their seconds and bytes."""

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from atom.graph.chain import Chain, Operation
from atom.graph.costs.operations import OperationCost, operation_costs
from atom.graph.layers import layers_of
from atom.graph.profile.seconds import Seconds
from atom.graph.traced import Graph


def operation_chain(graph: Graph, seconds: Sequence[Seconds], fused: bool = False) -> Chain:
    """One operation per entry of `graph.calls`, with the seconds of a profile of this graph.

    `fused`: for a GPU, whose kernels keep less for the backward than a CPU's.

    A run of operations holds at the most, over its members i: what is kept by those up to i, the
    transient bytes of i, and gradients of the parameters of those behind i (in the parameters'
    precision, until the backward is over); besides the values it takes and gives, and the
    gradients of those it gives.

    Seconds of the backward include those of what the graph computes again.

    Raises: ValueError if `seconds` is not one entry per call.
    """
    if len(seconds) != len(graph.calls):
        raise ValueError(f"{len(seconds)} timings for {len(graph.calls)} operations")
    chain = _chain(graph, seconds, fused)
    if not graph.recomputed:
        return chain
    once = [_once(graph, *each) for each in zip(graph.calls, seconds, strict=True)]
    return replace(chain, remembering=_chain(graph.remembering(), once, fused))


def _chain(graph: Graph, seconds: Sequence[Seconds], fused: bool) -> Chain:
    costs = operation_costs(graph, fused)
    layers = (layer.name for layer in layers_of(graph) for _ in layer.calls)
    operations = tuple(map(_operation, costs.operations, seconds, layers))
    return Chain(operations, costs.values, graph.forbidden_cuts)


def _once(graph: Graph, call: fx.Node, seconds: Seconds) -> Seconds:
    """Without the second forward of a call that is computed again."""
    if call not in graph.span_of:
        return seconds
    # Shares of a measured layer's seconds need not hold a whole forward.
    return replace(seconds, backward_s=max(0.0, seconds.backward_s - seconds.forward_s))


def _operation(cost: OperationCost, seconds: Seconds, layer: str) -> Operation:
    """Named so that it can be found: by its module, else by the layer it is in."""
    return Operation(
        name=cost.name if " " in cost.name else f"{layer} {cost.name}",
        parameters=cost.parameters,
        forward_s=seconds.forward_s,
        backward_s=seconds.backward_s,
        working_bytes=cost.kept_bytes,
        transient_bytes=cost.transient_bytes,
    )
