"""From timings to the profiles of layers: what is known of each, in one place."""

from collections.abc import Iterable, Sequence

import torch

from atom.graph.costs.operations import OperationCost, OperationCosts
from atom.graph.ir import padded_elements
from atom.graph.layers import Layer, layers_of
from atom.graph.profile.roofline import Rates, seconds
from atom.graph.profile.seconds import LayerProfile, LinkRates, OperationSeconds, Spread
from atom.graph.profile.sub_models import SubModelSeconds
from atom.graph.traced import Graph


def layer_profiles(
    graph: Graph, costs: OperationCosts, timings: Sequence[SubModelSeconds], link: LinkRates
) -> tuple[LayerProfile, ...]:
    """One per layer of `layers_of(graph)`."""
    layers = layers_of(graph)
    return tuple(
        _layer_profile(graph, layer, costs.operations[span.start : span.stop], timing, link)
        for layer, span, timing in zip(layers, _spans(layers), timings, strict=True)
    )


def summed(graph: Graph, operations: Sequence[OperationSeconds]) -> tuple[SubModelSeconds, ...]:
    """A layer as the sum of its calls: medians only, so without a spread."""
    return tuple(
        SubModelSeconds(
            Spread.exactly(sum(operations[index].forward_s for index in span)),
            Spread.exactly(sum(operations[index].backward_s for index in span)),
        )
        for span in _spans(layers_of(graph))
    )


def shared(
    graph: Graph, costs: OperationCosts, timings: Sequence[SubModelSeconds], rates: Rates
) -> tuple[OperationSeconds, ...]:
    """Each layer's seconds shared among its calls, as `rates` would have them."""
    operations: list[OperationSeconds] = []
    for span, timing in zip(_spans(layers_of(graph)), timings, strict=True):
        calls = costs.operations[span.start : span.stop]
        forward = _shares(timing.forward_s, (seconds(call.forward, rates) for call in calls))
        backward = _shares(timing.backward_s, (seconds(call.backward, rates) for call in calls))
        operations += map(OperationSeconds, forward, backward)
    return tuple(operations)


def _shares(total: float, weights: Iterable[float]) -> list[float]:
    weights = list(weights)
    whole = sum(weights)
    if whole == 0:
        return [total / len(weights)] * len(weights)
    return [total * weight / whole for weight in weights]


def _spans(layers: Sequence[Layer]) -> list[range]:
    """Each layer's calls by their positions in `graph.calls`: layers follow each other."""
    spans, end = [], 0
    for layer in layers:
        spans.append(range(end, end + len(layer.calls)))
        end += len(layer.calls)
    return spans


def _layer_profile(
    graph: Graph,
    layer: Layer,
    costs: Sequence[OperationCost],
    timing: SubModelSeconds,
    link: LinkRates,
) -> LayerProfile:
    names = {graph.parameters[node] for node in layer.parameters}
    sizes = {name: padded_elements(graph.layout.by_name[name].numel) for name in names}
    parameter_bytes = sum(sizes.values()) * graph.parameter_dtype.itemsize
    trained = sum(size for name, size in sizes.items() if name not in graph.frozen)
    gradient_bytes = trained * torch.float32.itemsize
    kept = sum(cost.kept_bytes for cost in costs)
    kept_bytes = kept if timing.kept_bytes is None else timing.kept_bytes
    transient = max((cost.transient_bytes for cost in costs), default=0)
    return LayerProfile(
        name=layer.name,
        forward_s=timing.forward,
        backward_s=timing.backward,
        load_s=link.load_bytes_per_s.time_of(parameter_bytes),
        gradient_out_s=link.gradient_bytes_per_s.time_of(gradient_bytes),
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        output_bytes=sum(graph.specs[node].size_bytes for node in layer.outputs),
        kept_bytes=kept_bytes,
        working_bytes=timing.peak_bytes or kept_bytes + transient,
    )
