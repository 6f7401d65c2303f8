"""Where to cut a chain of layers into sub-models that fit a device.

While a sub-model computes, the next one is being loaded; while its gradients leave, the next
one's are made. So the device holds two slots for parameters P, in the run's precision, and two for
their gradients G, in float32 whatever the precision. With activations A a sub-model needs

    2·P + 2·G + A ≤ device budget,

where a parameter used by several layers of one sub-model is held once, and A is what the
sub-model takes and gives plus the working memory of all its layers (backward recomputes the whole
sub-model). Among the ways to cut into consecutive sub-models that fit, take the fewest sub-models,
then the smallest largest P (loads of equal length overlap best), then the earliest cuts.

Let best(j) = (sub-models, largest P) for the first j layers. Because the count is compared first,
a best cut's prefix is itself a best cut of its layers, and

    best(j) = min over i < j that fit of (count(i) + 1, max(largest(i), P(i..j)))

finds it in O(layers²).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atom.base.errors import DeviceError
from atom.base.units import format_bytes

GRADIENT_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class LayerCost:
    """What one layer asks of a device, for one micro-batch."""

    name: str
    parameters: Mapping[str, int]
    """Name in the layout → bytes; a tied parameter is listed by every layer that uses it."""
    input_bytes: int = 0
    """Values taken from earlier layers or the batch."""
    output_bytes: int = 0
    """Values kept for later layers."""
    working_bytes: int = 0
    """Estimate of what the layer's forward keeps for its backward."""
    flops: float = 0.0
    """Floating-point operations of one forward."""
    parameter_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameter_bytes", sum(self.parameters.values()))


def finest_cut(layers: int) -> list[tuple[int, int]]:
    """One sub-model per layer."""
    return [(index, index) for index in range(layers)]


def need_bytes(layers: Sequence[LayerCost], element_bytes: int = GRADIENT_ELEMENT_BYTES) -> int:
    """Device memory of one sub-model made of these consecutive layers.

    `element_bytes`: of one parameter as it is loaded (2 in bfloat16 and float16).
    """
    working = sum(layer.working_bytes for layer in layers)
    held = _held_bytes(_parameter_bytes(layers), element_bytes)
    return held + working + layers[0].input_bytes + layers[-1].output_bytes


def balanced_cut(
    layers: Sequence[LayerCost],
    device_budget_bytes: int,
    element_bytes: int = GRADIENT_ELEMENT_BYTES,
) -> list[tuple[int, int]]:
    """The fewest, most even sub-models that fit, as (first layer, last layer), both included.

    Raises: DeviceError naming the first layer that does not fit alone.
    """
    for layer in layers:
        _refuse_too_large(layer, device_budget_bytes, element_bytes)
    best: list[tuple[int, int]] = [(0, 0)]
    starts = [0]
    for end in range(1, len(layers) + 1):
        found, start = min(
            ((best[start][0] + 1, max(best[start][1], held)), start)
            for start, held in _fitting_starts(layers, end, device_budget_bytes, element_bytes)
        )
        best.append(found)
        starts.append(start)
    return _walk_back(starts)


def _fitting_starts(
    layers: Sequence[LayerCost], end: int, budget_bytes: int, element_bytes: int
) -> list[tuple[int, int]]:
    """(start, parameter bytes) of every sub-model that ends before `end` and fits."""
    held: dict[str, int] = {}
    working, fitting = 0, []
    for start in range(end - 1, -1, -1):
        held.update(layers[start].parameters)
        working += layers[start].working_bytes
        parameter_bytes = sum(held.values())
        need = _held_bytes(parameter_bytes, element_bytes) + working
        if need > budget_bytes:
            break  # earlier starts only need more
        if need + layers[start].input_bytes + layers[end - 1].output_bytes <= budget_bytes:
            fitting.append((start, parameter_bytes))
    return fitting


def _walk_back(starts: Sequence[int]) -> list[tuple[int, int]]:
    cut, end = [], len(starts) - 1
    while end > 0:
        cut.append((starts[end], end - 1))
        end = starts[end]
    return cut[::-1]


def _refuse_too_large(layer: LayerCost, budget_bytes: int, element_bytes: int) -> None:
    need = need_bytes([layer], element_bytes)
    if need > budget_bytes:
        raise DeviceError(
            f"layer {layer.name} needs {format_bytes(need)} of device memory "
            f"(its parameters and their gradients twice, activations); "
            f"the budget is {format_bytes(budget_bytes)}",
            "give the peer more device memory, or use smaller micro-batches or bfloat16",
        )


def _parameter_bytes(layers: Sequence[LayerCost]) -> int:
    held: dict[str, int] = {}
    for layer in layers:
        held.update(layer.parameters)
    return sum(held.values())


def _held_bytes(parameter_bytes: int, element_bytes: int) -> int:
    """Both slots of parameters and of gradients."""
    return 2 * parameter_bytes + 2 * parameter_bytes * GRADIENT_ELEMENT_BYTES // element_bytes
