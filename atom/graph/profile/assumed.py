"""A graph's profile without running it, from its kernels and a device's rates."""

from collections.abc import Iterator, Sequence

import torch

from atom.graph.chain import Machine
from atom.graph.costs.operations import OperationCost, operation_costs
from atom.graph.ir import padded_elements
from atom.graph.layers import Layer, layers_of
from atom.graph.profile.devices import TYPICAL, Rates, assumed_device
from atom.graph.profile.seconds import LayerProfile, OperationSeconds, Profile
from atom.graph.profile.sub_models import measure_link
from atom.graph.traced import Graph


def assume_graph(graph: Graph, device: str) -> Profile:
    """On a device that is not here.

    Raises: DeviceError for a device that is not in the table, or lacks the graph's precision.
    """
    assumed = assumed_device(device, graph.parameter_dtype)
    rate = assumed.link_bytes_per_s.value
    return _reckoned(graph, assumed.title, assumed.rates(), Machine(rate, rate), fused=True)


def typical_graph(graph: Graph, device: torch.device, link: Machine | None = None) -> Profile:
    """As a usual device of this kind would take it; the link alone is measured, unless given.
    Right in its proportions, not in its seconds: for choosing a cut where measuring is not
    possible."""
    link = link or measure_link(device)
    return _reckoned(graph, device.type, TYPICAL[device.type], link, device.type == "cuda")


def _reckoned(graph: Graph, title: str, rates: Rates, link: Machine, fused: bool) -> Profile:
    layers, operations = [], list[OperationSeconds]()
    for layer, costs in costs_by_layer(graph, fused):
        calls = [OperationSeconds(*reckoned_s(cost, rates)) for cost in costs]
        both = sum(one.forward_s for one in calls), sum(one.backward_s for one in calls)
        layers.append(layer_profile(graph, layer, costs, *both))
        operations += calls
    return Profile("assumed", title, tuple(layers), tuple(operations), link)


def reckoned_s(cost: OperationCost, rates: Rates) -> tuple[float, float]:
    """Seconds of one call, forward and backward."""
    return rates.seconds(cost.forward), rates.seconds(cost.backward)


def costs_by_layer(graph: Graph, fused: bool) -> Iterator[tuple[Layer, Sequence[OperationCost]]]:
    """Every layer with the costs of its calls, in order."""
    costs, end = operation_costs(graph, fused).operations, 0
    for layer in layers_of(graph):
        start, end = end, end + len(layer.calls)
        yield layer, costs[start:end]


def layer_profile(
    graph: Graph,
    layer: Layer,
    costs: Sequence[OperationCost],
    forward_s: float,
    backward_s: float,
) -> LayerProfile:
    """What is known of a layer, in one place."""
    names = {graph.parameters[node] for node in layer.parameters}
    sizes = {name: padded_elements(graph.layout.by_name[name].numel) for name in names}
    trained = sum(size for name, size in sizes.items() if name not in graph.frozen)
    transient = max((cost.transient_bytes for cost in costs), default=0)
    return LayerProfile(
        name=layer.name,
        forward_s=forward_s,
        backward_s=backward_s,
        parameter_bytes=sum(sizes.values()) * graph.parameter_dtype.itemsize,
        gradient_bytes=trained * torch.float32.itemsize,
        working_bytes=sum(cost.kept_bytes for cost in costs) + transient,
    )
