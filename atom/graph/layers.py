"""Layers: the parts of a model that have a name, and the pieces that a cut makes of them.

A *layer* is a run of consecutive calls made in the same numbered module ("blocks.3"). What comes
before the first numbered module is the embedding, what follows the last is the head. A model
without numbered modules is grouped by its top-level modules instead.

A cut may fall between any two calls that belong to different memory. Where it falls inside a
layer, the layer becomes several *pieces*: "blocks.3 (1/2)", "blocks.3 (2/2)".
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
    """A run of consecutive calls; or a piece of one."""

    name: str
    kind: str
    """Name of the user's class, or of the role (Embedding, Head): for the generated class."""
    prefix: str
    """Path of the module; names inside the layer are relative to it. Empty: the whole model."""
    calls: _Calls


@dataclass(frozen=True)
class Flow:
    """What calls in a row read and give."""

    parameters: _Calls
    """Placeholders in order of first use."""
    constants: _Calls
    inputs: _Calls
    """Batch entries and earlier values, in order of first use."""
    outputs: _Calls
    """Values that later calls use, and the loss, in the order they are made."""


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """The finest cut: every boundary between two layers is a legal place to cut."""
    named = numbered_module if any(map(numbered_module, graph.calls)) else _top_level
    runs = list(_runs(graph, named))
    last = len(runs) - 1
    return tuple(_layer(graph, calls, named, i, last) for i, calls in enumerate(runs))


def _runs(graph: Graph, named: Callable[[fx.Node], str]) -> Iterator[_Calls]:
    """A run ends where the module changes, or at the next legal place to cut. One without
    parameters (an activation, a sum of skips) belongs to the run before it."""
    run: _Calls = ()
    end = reached = 0
    for _, calls in groupby(graph.calls, named):
        end += len(list(calls))
        stop = max(end, reached)
        while stop in graph.forbidden_cuts and stop < len(graph.calls):
            stop += 1
        added, reached = graph.calls[reached:stop], stop
        if _reading(graph, run) and _reading(graph, added):
            yield run
            run = added
        else:
            run += added
    yield run


def numbered_module(node: fx.Node) -> str:
    """The outermost numbered module, or an empty string. A region's is that of its calls."""
    paths = (path for call in with_nested(node) for path, _ in layer_path(call))
    return next((path for path in paths if _NUMBERED.search(path)), "")


def _top_level(node: fx.Node) -> str:
    path = layer_path(node)
    return path[0][0] if path else ""


def _reading(graph: Graph, calls: Iterable[fx.Node]) -> list[fx.Node]:
    """Those that read parameters."""
    return [call for call in calls if any(n in graph.parameters for n in call.all_input_nodes)]


def _layer(
    graph: Graph, calls: _Calls, named: Callable[[fx.Node], str], index: int, last: int
) -> Layer:
    paths = list(dict.fromkeys(map(named, _reading(graph, calls) or calls)))
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
    """Positions in the graph's calls where the layers end."""
    return tuple(accumulate(len(layer.calls) for layer in layers))


def ends_alike(graph: Graph, other: Graph, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Cuts `other`, the same layers with other calls in them, as `ends` cut `graph`: at the same
    layers; a cut within a layer falls as far into it, at the next legal place. If the layers
    are not the same, at every one."""
    found = []
    borders, others = layer_ends(layers_of(graph)), layer_ends(layers_of(other))
    if len(borders) != len(others):
        return others
    spans = list(zip(pairwise([0, *borders]), pairwise([0, *others]), strict=True))
    for end in ends:
        (start, stop), (there, past) = next(pair for pair in spans if end <= pair[0][1])
        place = there + -(-(end - start) * (past - there) // (stop - start))
        while place in other.forbidden_cuts:
            place += 1
        found.append(min(place, len(other.calls)))
    return tuple(dict.fromkeys(found))


def pieces_of(
    graph: Graph, layers: Sequence[Layer], ends: Sequence[int]
) -> list[tuple[Layer, ...]]:
    """Layers and pieces of layers, in runs that end at the positions `ends`. These grow, are legal
    places to cut, and reach the last call."""
    last = len(graph.calls)
    legal = {*range(1, last)} - graph.forbidden_cuts | {last}
    assert [*ends] == sorted(legal.intersection([*ends, last])), f"no legal cut: {ends}"
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
    """Of calls in a row."""
    inside = set(calls)
    read = dict.fromkeys(node for call in calls for node in call.all_input_nodes)
    outside = graph.call_set - inside
    return Flow(
        parameters=tuple(node for node in read if node in graph.parameters),
        constants=tuple(node for node in read if node in graph.constants),
        inputs=tuple(node for node in read if node in graph.batch or node in outside),
        outputs=tuple(n for n in calls if n is graph.loss or not outside.isdisjoint(n.users)),
    )
