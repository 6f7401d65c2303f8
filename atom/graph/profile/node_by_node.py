"""Every call measured alone, on tensors that look and lie in memory like its own."""

import statistics
from collections.abc import Hashable, Sequence

import torch
from torch import fx

from atom.graph.costs import alone
from atom.graph.costs.alone import Form
from atom.graph.costs.operations import OperationCosts
from atom.graph.profile.index_bounds import argument_bound
from atom.graph.profile.rates import Stopwatch, now
from atom.graph.profile.seconds import OperationSeconds
from atom.graph.traced import Graph, is_getitem

_NOTHING = OperationSeconds(0.0, 0.0)


def measure_operations(
    graph: Graph,
    costs: OperationCosts,
    device: torch.device | str,
    repeats: int = 5,
    stopwatch: Stopwatch = now,
) -> tuple[OperationSeconds, ...]:
    """One entry per call. Calls of one form are measured once; each is dropped before the next.

    Integers that are computed inside the model (routing, for one) are zeros where nothing says
    what they index, so what depends on their values is not measured faithfully.
    """
    device = torch.device(device)
    measured: dict[Hashable, OperationSeconds] = {}
    seconds = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for node, cost in zip(graph.calls, costs.operations, strict=True):
            if is_getitem(node):
                seconds.append(_NOTHING)
                continue
            key = (alone.form_key(node, cost.forms), _parameter_positions(graph, node))
            if key not in measured:
                bench = _Bench(graph, node, device, stopwatch)
                measured[key] = bench.measure(cost.forms, repeats)
            seconds.append(_with_second_forward(measured[key], node in graph.span_of))
    return tuple(seconds)


def _with_second_forward(seconds: OperationSeconds, again: bool) -> OperationSeconds:
    if not again:
        return seconds
    return OperationSeconds(seconds.forward_s, seconds.backward_s + seconds.forward_s)


def _parameter_positions(graph: Graph, node: fx.Node) -> tuple[int, ...]:
    arguments = alone.arguments_of(node)
    return tuple(i for i, argument in enumerate(arguments) if argument in graph.parameters)


class _Bench:
    def __init__(
        self, graph: Graph, node: fx.Node, device: torch.device, stopwatch: Stopwatch
    ) -> None:
        self._graph, self._node, self._device = graph, node, device
        self._stopwatch = stopwatch

    def measure(self, forms: Sequence[Form], repeats: int) -> OperationSeconds:
        made = alone.make_inputs(self._node, forms, self._fill)
        sums = self._sums(*made)
        samples = []
        for _ in range(repeats + 1):
            samples.append(self._once(*made, sums))
            if alone.changes_arguments(self._node):
                made = alone.make_inputs(self._node, forms, self._fill)
        going, coming = zip(*samples[1:], strict=True)  # the first one chooses kernels
        return OperationSeconds(statistics.median(going), statistics.median(coming))

    def _once(
        self,
        inputs: alone.Inputs,
        leaves: tuple[torch.Tensor, ...],
        sums: Sequence[torch.Tensor | None],
    ) -> tuple[float, float]:
        start = self._stopwatch(self._device)
        outcome = alone.forward(self._node, inputs, leaves)
        between = self._stopwatch(self._device)
        for total, gradient in zip(sums, alone.backward(outcome), strict=False):
            if total is not None and gradient is not None:
                total.add_(gradient)
        return between - start, self._stopwatch(self._device) - between

    def _sums(
        self, inputs: alone.Inputs, leaves: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Where parameters' gradients are added up, in the order of the leaves."""
        trained = {id(t) for node, t in inputs.items() if node in self._graph.parameters}
        return [
            torch.zeros_like(leaf, dtype=torch.float32) if id(leaf) in trained else None
            for leaf in leaves
        ]

    def _fill(self, argument: fx.Node, form: Form) -> torch.Tensor:
        if form.dtype.is_floating_point:
            return torch.rand(form.span, device=self._device).to(form.dtype)
        bound = argument_bound(self._node, argument, self._graph) or 1
        if form.dtype is torch.bool:
            return torch.ones(form.span, dtype=form.dtype, device=self._device)
        return torch.randint(bound, (form.span,), dtype=form.dtype, device=self._device)
