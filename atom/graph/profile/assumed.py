"""A graph's profile on a device that is not here, from its kernels and the device's rates."""

from atom.graph.operations import OperationCost, operation_costs
from atom.graph.profile.by_layer import layer_profiles, summed
from atom.graph.profile.devices import assumed_device
from atom.graph.profile.roofline import Rates, seconds
from atom.graph.profile.seconds import LinkRates, OperationSeconds, Profile, Spread
from atom.graph.traced import Graph


def assume_graph(graph: Graph, device: str) -> Profile:
    """Every kernel as slow as the slower of its computing and its memory traffic, and its launch.

    Raises: DeviceError for a device that is not in the table, or lacks the graph's precision.
    """
    assumed = assumed_device(device, graph.parameter_dtype)
    costs = operation_costs(graph, fused=True)
    rates = assumed.rates()
    operations = tuple(_seconds(cost, rates) for cost in costs.operations)
    rate = Spread.exactly(assumed.link_bytes_per_s.value)
    link = LinkRates(rate, rate)
    layers = layer_profiles(graph, costs, summed(graph, operations), link)
    return Profile("assumed", assumed.title, "operator", layers, operations, link)


def _seconds(cost: OperationCost, rates: Rates) -> OperationSeconds:
    return OperationSeconds(seconds(cost.forward, rates), seconds(cost.backward, rates))
