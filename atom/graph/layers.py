"""Layers: the named parts of a model, and the pieces into which cuts divide them.

A *layer* is a sequence of consecutive calls made in the same numbered module ("blocks.3"). The
calls before the first numbered module are the embedding, the calls after the last are the head. If
a model has no numbered modules, its top-level modules are the layers.

A cut is legal between any two calls except at the graph's `forbidden_cuts`. A cut inside a layer
divides it into *pieces*: "blocks.3 (1/2)", "blocks.3 (2/2)".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from torch import fx

from atom.graph.traced import Graph, layer_path, with_nested

_NUMBERED = re.compile(r"(^|\.)\d+(@\d+)?$")
_Calls = tuple[fx.Node, ...]


@dataclass(frozen=True)
class Layer:
    """Named sequence of consecutive calls, or a piece of one."""

    name: str
    kind: str
    """Class of the user, or role (Embedding, Head), after which generated classes are named."""
    prefix: str
    """Path of the module, to which names in the layer are relative. Empty for the whole model."""
    calls: _Calls


@dataclass(frozen=True)
class Flow:
    """Values that a sequence of consecutive calls reads and provides."""

    parameters: _Calls
    """Placeholders of parameters, in order of first use."""
    constants: _Calls
    inputs: _Calls
    """Batch entries and earlier values, in order of first use."""
    outputs: _Calls
    """Values used outside the sequence, and the loss, in the order in which they are made."""


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of a graph in order. Each boundary between two of them is a legal cut."""
    named = numbered_module if any(map(numbered_module, graph.calls)) else _top_level
    runs = list(_runs(graph, named))
    last = len(runs) - 1
    return tuple(_layer(graph, calls, named, i, last) for i, calls in enumerate(runs))


def _runs(graph: Graph, named: Callable[[fx.Node], str]) -> Iterator[_Calls]:
    """Yield the calls of each layer.

    A layer ends where the module changes, or at the next legal cut. Calls without parameters (an
    activation, a sum of skip connections) belong to the layer before them.
    """
    run: _Calls = ()
    end = reached = 0
    for _, calls in groupby(graph.calls, named):
        end += len(list(calls))
        stop = max(end, reached)
        while stop in graph.forbidden_cuts and stop < len(graph.calls):
            stop += 1
        added, reached = graph.calls[reached:stop], stop
        if _parameter_readers(graph, run) and _parameter_readers(graph, added):
            yield run
            run = added
        else:
            run += added
    yield run


def numbered_module(node: fx.Node) -> str:
    """Return the path of the outermost numbered module of a call, or an empty string.

    For a region, the calls inside it decide.
    """
    paths = (path for call in with_nested(node) for path, _ in layer_path(call))
    return next((path for path in paths if _NUMBERED.search(path)), "")


def _top_level(node: fx.Node) -> str:
    path = layer_path(node)
    return path[0][0] if path else ""


def _parameter_readers(graph: Graph, calls: Iterable[fx.Node]) -> list[fx.Node]:
    """Return the calls that read parameters."""
    return [call for call in calls if any(n in graph.parameters for n in call.all_input_nodes)]


def _layer(
    graph: Graph, calls: _Calls, named: Callable[[fx.Node], str], index: int, last: int
) -> Layer:
    paths = list(dict.fromkeys(map(named, _parameter_readers(graph, calls) or calls)))
    path = paths[0].partition("@")[0]
    if len(paths) > 1:
        name, kind, path = f"{paths[0] or 'embedding'} … {paths[-1] or 'head'}", "Layers", ""
    elif path:
        inner = (pair for call in calls for each in with_nested(call) for pair in layer_path(each))
        name, kind = paths[0], dict(inner)[paths[0]].rpartition(".")[2]
    elif last == 0:
        name, kind = "model", graph.model_name
    elif index == 0:
        name, kind = "embedding", "Embedding"
    else:
        name, kind = ("head", "Head") if index == last else (f"middle {index}", "Middle")
    return Layer(name, kind, path, calls)


def layer_ends(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Return the positions in the graph's calls at which the layers end."""
    return tuple(accumulate(len(layer.calls) for layer in layers))


def ends_alike(graph: Graph, other: Graph, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return a cut of `other` that corresponds to the cut `ends` of `graph`.

    Both graphs have the same layers, with different calls inside (training and evaluation, for
    example). Cuts between layers stay between the same layers. A cut inside a layer moves to the
    same fraction of the layer, then to the next legal position. If only the last layers are missing
    in `other` (the loss), its last cut is at its end. If the layers differ more, `other` is cut
    after every layer.

    Args:
        graph: the graph that `ends` cut.
        other: the graph to cut.
        ends: positions in the calls of `graph` at which sub-models end, ascending.

    Returns:
        Positions in the calls of `other`, ascending.
    """
    found = []
    layers, its_layers = layers_of(graph), layers_of(other)
    borders, others = layer_ends(layers), layer_ends(its_layers)
    shorter = [each.name for each in layers[: len(others)]] == [each.name for each in its_layers]
    if len(borders) != len(others) and not shorter:
        return others
    spans = list(zip(pairwise([0, *borders]), pairwise([0, *others]), strict=False))
    for end in ends:
        (start, stop), (begin, past) = next((p for p in spans if end <= p[0][1]), spans[-1])
        place = begin + -(-(min(end, stop) - start) * (past - begin) // (stop - start))
        while place in other.forbidden_cuts:
            place += 1
        found.append(min(place, len(other.calls)))
    return tuple(dict.fromkeys(found))


def pieces_of(
    graph: Graph, layers: Sequence[Layer], ends: Sequence[int]
) -> list[tuple[Layer, ...]]:
    """Return, for each sub-model, its layers and pieces of layers.

    Args:
        graph: the traced model.
        layers: all layers of `graph`.
        ends: positions at which sub-models end: ascending legal cuts, the last one after all calls.

    Raises:
        ValueError: the cut is not one of this graph.
    """
    last = len(graph.calls)
    legal = {*range(1, last)} - graph.forbidden_cuts | {last}
    if [*ends] != sorted(legal.intersection([*ends, last])):
        raise ValueError(f"no legal cut of a graph of {last} calls: {[*ends]}")
    wanted, start = frozenset(ends), 0
    runs: list[tuple[Layer, ...]] = [()]
    for layer in layers:
        stop = start + len(layer.calls)
        inner = [position for position in range(start + 1, stop) if position in wanted]
        spans = list(pairwise([start, *inner, stop]))
        for number, (first, last) in enumerate(spans, 1):
            runs[-1] += (_piece(layer, graph.calls[first:last], number, len(spans)),)
            runs += [()] if last in wanted else []
        start = stop
    return runs[:-1]


def _piece(layer: Layer, calls: _Calls, number: int, count: int) -> Layer:
    if count == 1:
        return layer
    role = "Start" if number == 1 else "End" if number == count else "Middle"
    name, kind = f"{layer.name} ({number}/{count})", f"{layer.kind}{role}"
    return Layer(name, kind, layer.prefix, calls)


def flow_of(graph: Graph, calls: Sequence[fx.Node]) -> Flow:
    """Return the values that consecutive calls read and provide."""
    inside = set(calls)
    read = dict.fromkeys(node for call in calls for node in call.all_input_nodes)
    outside = graph.call_set - inside
    return Flow(
        parameters=tuple(node for node in read if node in graph.parameters),
        constants=tuple(node for node in read if node in graph.constants),
        inputs=tuple(node for node in read if node in graph.batch or node in outside),
        outputs=tuple(n for n in calls if n is graph.loss or not outside.isdisjoint(n.users)),
    )
