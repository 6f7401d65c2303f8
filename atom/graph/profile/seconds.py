"""Seconds of a graph's layers and calls on a device: reckoned from rates, or measured layer by
layer and shared among a layer's calls as they would be reckoned. Both look the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from atom.graph.chain import Machine, Operation, Seconds
from atom.graph.costs.operations import operation_costs
from atom.graph.ir import padded_elements
from atom.graph.layers import Layer, layers_of
from atom.graph.profile.devices import TYPICAL, Rates, assumed_device
from atom.graph.traced import Graph


@dataclass(frozen=True)
class Profile:
    """What a graph costs on a device."""

    source: str
    """`measured`, or `assumed` for a device of the table or a usual one."""
    device_name: str
    layers: tuple[Seconds, ...]
    operations: tuple[Seconds, ...]
    """One per entry of `graph.calls`."""
    link: Machine


def assume_graph(graph: Graph, device: str) -> Profile:
    """On a device that is not here.

    Raises: DeviceError for a device that is not in the table, or lacks the graph's precision.
    """
    assumed = assumed_device(device, graph.parameter_dtype)
    rate = assumed.link_bytes_per_s
    return _assumed(graph, assumed.title, assumed.rates, Machine(rate, rate), fused=True)


def typical_graph(graph: Graph, device: torch.device, link: Machine) -> Profile:
    """As a usual device of this kind would take it. Right in its proportions, not in its seconds:
    for choosing a cut where measuring is not possible."""
    fused = device.type == "cuda"
    return _assumed(graph, device.type, TYPICAL[device.type], link, fused)


def _assumed(graph: Graph, title: str, rates: Rates, link: Machine, fused: bool) -> Profile:
    layers = [[_reckoned(cost, rates) for cost in costs] for _, costs in _by_layer(graph, fused)]
    calls = tuple(call for layer in layers for call in layer)
    return Profile("assumed", title, tuple(map(_sum, layers)), calls, link)


def measured_graph(
    graph: Graph, device: torch.device, name: str, layers: Sequence[Seconds], link: Machine
) -> Profile:
    """From what was measured: seconds per layer, and the link."""
    calls = list[Seconds]()
    by_layer = _by_layer(graph, fused=device.type == "cuda")
    for seconds, (_, costs) in zip(layers, by_layer, strict=True):
        calls += _shares(seconds, [_reckoned(cost, TYPICAL[device.type]) for cost in costs])
    return Profile("measured", name, tuple(layers), tuple(calls), link)


def largest_layer_bytes(graph: Graph, fused: bool) -> int:
    """The most that a layer takes which runs alone: its parameters, their sums of gradients in
    float32, and what it works with."""
    return max(_layer_bytes(graph, *each) for each in _by_layer(graph, fused))


def _layer_bytes(graph: Graph, layer: Layer, costs: Sequence[Operation]) -> int:
    names = {graph.parameters[node] for node in layer.parameters}
    elements = sum(padded_elements(graph.layout.by_name[name].numel) for name in names)
    working = sum(cost.working_bytes for cost in costs) + max(
        cost.transient_bytes for cost in costs
    )
    return elements * (2 * graph.parameter_dtype.itemsize + torch.float32.itemsize) + working


def _by_layer(graph: Graph, fused: bool) -> Iterator[tuple[Layer, list[Operation]]]:
    costs = iter(operation_costs(graph, fused).operations)
    for layer in layers_of(graph):
        yield layer, list(islice(costs, len(layer.calls)))


def _reckoned(cost: Operation, rates: Rates) -> Seconds:
    return Seconds(rates.seconds(cost.forward), rates.seconds(cost.backward))


def _sum(calls: Sequence[Seconds]) -> Seconds:
    return Seconds(sum(c.forward_s for c in calls), sum(c.backward_s for c in calls))


def _shares(total: Seconds, calls: Sequence[Seconds]) -> Iterator[Seconds]:
    """Of `total`, in the proportions of `calls`."""
    whole = _sum(calls)
    for call in calls:
        yield Seconds(
            _share(total.forward_s, call.forward_s, whole.forward_s, len(calls)),
            _share(total.backward_s, call.backward_s, whole.backward_s, len(calls)),
        )


def _share(total: float, part: float, whole: float, parts: int) -> float:
    return total * part / whole if whole else total / parts
