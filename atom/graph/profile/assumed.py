"""A graph's profile on a device that is not here, from its kernels and the device's rates."""

import torch

from atom.graph.costs.operations import OperationCost, operation_costs
from atom.graph.profile.by_layer import layer_profiles, summed
from atom.graph.profile.devices import assumed_device
from atom.graph.profile.rates import measure_link
from atom.graph.profile.roofline import TYPICAL, Rates, seconds
from atom.graph.profile.seconds import LinkRates, OperationSeconds, Profile, Spread
from atom.graph.traced import Graph


def assume_graph(graph: Graph, device: str) -> Profile:
    """Every kernel as slow as the slower of its computing and its memory traffic, and its launch.

    Raises: DeviceError for a device that is not in the table, or lacks the graph's precision.
    """
    assumed = assumed_device(device, graph.parameter_dtype)
    rate = Spread.exactly(assumed.link_bytes_per_s.value)
    return _reckoned(graph, assumed.title, assumed.rates(), LinkRates(rate, rate), fused=True)


def typical_graph(graph: Graph, device: torch.device, link: LinkRates | None = None) -> Profile:
    """As a usual device of this kind would take it; the link alone is measured, unless given.
    Right in its proportions, not in its seconds: for choosing a cut where measuring is not
    possible."""
    link = link or measure_link(device)
    return _reckoned(graph, device.type, TYPICAL[device.type], link, device.type == "cuda")


def _reckoned(graph: Graph, title: str, rates: Rates, link: LinkRates, fused: bool) -> Profile:
    costs = operation_costs(graph, fused)
    operations = tuple(_seconds(cost, rates) for cost in costs.operations)
    layers = layer_profiles(graph, costs, summed(graph, operations), link)
    return Profile("assumed", title, layers, operations, link)


def _seconds(cost: OperationCost, rates: Rates) -> OperationSeconds:
    return OperationSeconds(seconds(cost.forward, rates), seconds(cost.backward, rates))
