"""What each layer costs, counted from shapes: bytes and floating-point operations.

Counting runs nothing. `profile` measures seconds on a device.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from torch import fx

from atom.graph.ir import ValueSpec
from atom.graph.layers import Layer
from atom.graph.partition.balanced import LayerCost
from atom.graph.traced import Graph

_VIEWS = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "split", "chunk",
    "select", "slice", "t", "detach", "alias", "flatten",
}  # fmt: skip
"""Results that share their argument's memory (reshape and flatten nearly always do)."""


def layer_costs(graph: Graph, layers: Sequence[Layer]) -> list[LayerCost]:
    """One cost per layer, for one micro-batch of the traced shapes."""
    return [_cost(graph, layers, index) for index in range(len(layers))]


def _cost(graph: Graph, layers: Sequence[Layer], index: int) -> LayerCost:
    layer = layers[index]
    itemsize = graph.parameter_dtype.itemsize
    sizes = {
        graph.parameters[node]: math.prod(graph.specs[node].shape) * itemsize
        for node in layer.parameters
    }
    return LayerCost(
        name=layer.name,
        parameters=sizes,
        input_bytes=_bytes(graph, layer.inputs),
        output_bytes=_bytes(graph, layer.outputs),
        working_bytes=_working_bytes(graph, layer),
        flops=sum(_flops(graph, node) for node in layer.calls),
    )


def _bytes(graph: Graph, nodes: Iterable[fx.Node]) -> int:
    return sum(graph.specs[node].size_bytes for node in nodes)


def _working_bytes(graph: Graph, layer: Layer) -> int:
    """Every result that owns memory, as if all were kept, and two gradients of the largest."""
    sizes = [
        graph.specs[node].size_bytes
        for node in layer.calls
        if node in graph.specs and _operator(node) not in _VIEWS
    ]
    return sum(sizes) + 2 * max(sizes, default=0)


def _flops(graph: Graph, node: fx.Node) -> float:
    result = graph.specs.get(node)
    if result is None or _operator(node) in _VIEWS:
        return 0.0
    formula = _FORMULAS.get(_operator(node), _elementwise)
    arguments = [
        graph.specs[argument]
        for argument in node.args
        if isinstance(argument, fx.Node) and argument in graph.specs
    ]
    return formula(result, arguments)


def _elementwise(result: ValueSpec, arguments: Sequence[ValueSpec]) -> float:
    return float(math.prod(result.shape))


def _product(result: ValueSpec, arguments: Sequence[ValueSpec]) -> float:
    """linear, mm, bmm, matmul: the first argument's last extent is summed over."""
    return 2.0 * math.prod(result.shape) * arguments[0].shape[-1]


def _product_after_bias(result: ValueSpec, arguments: Sequence[ValueSpec]) -> float:
    return _product(result, arguments[1:])


def _attention(result: ValueSpec, arguments: Sequence[ValueSpec]) -> float:
    """Scores and mixing: [.., S, E] · [.., E, T] and [.., S, T] · [.., T, E]."""
    query, key = arguments[0].shape, arguments[1].shape
    return 4.0 * math.prod(query) * key[-2]


def _convolution(result: ValueSpec, arguments: Sequence[ValueSpec]) -> float:
    return 2.0 * math.prod(result.shape) * math.prod(arguments[1].shape[1:])


_FORMULAS: dict[str, Callable[[ValueSpec, Sequence[ValueSpec]], float]] = {
    **dict.fromkeys(("linear", "mm", "bmm", "matmul"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), _product_after_bias),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    "scaled_dot_product_attention": _attention,
}


def _operator(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", "")))
