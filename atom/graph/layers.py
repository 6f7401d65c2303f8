"""Layers: the parts of a model that have a name, and the pieces that a cut makes of them.

A *layer* is a run of consecutive calls made in the same numbered module ("blocks.3"). What comes
before the first numbered module is the embedding, what follows the last is the head. A model
without numbered modules is grouped by its top-level modules instead.

A cut may fall between any two calls that belong to different memory. Where it falls inside a
layer, the layer becomes several *pieces*: "blocks.3 (1/2)", "blocks.3 (2/2)".
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from torch import fx

from atom.base.errors import ModelError
from atom.graph.traced import Graph, layer_path, with_nested

_NUMBERED = re.compile(r"(^|\.)\d+(@\d+)?$")
_SPAN = " … "


@dataclass(frozen=True)
class Layer:
    """A run of consecutive calls, with what flows in and out of it; or a piece of one."""

    name: str
    kind: str
    """Name of the user's class, or of the role (Embedding, Head): for the generated class."""
    prefix: str
    """Path of the module; names inside the layer are relative to it. Empty: the whole model."""
    calls: tuple[fx.Node, ...]
    parameters: tuple[fx.Node, ...]
    """Placeholders in order of first use."""
    constants: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """Batch entries and earlier layers' values, in order of first use."""
    outputs: tuple[fx.Node, ...]
    """Values that later layers use, and the loss, in the order they are made."""


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """The finest cut: every boundary between two layers is a legal place to cut."""
    runs = _merge_without_parameters(graph, list(_runs(graph)))
    runs = _legal(graph, runs)
    last = len(runs) - 1
    return tuple(_layer(graph, key, calls, i, last) for i, (key, calls) in enumerate(runs))


_Run = tuple[str, tuple[fx.Node, ...]]


def _runs(graph: Graph) -> Iterator[_Run]:
    numbered = any(numbered_module(node) for node in graph.calls)
    for key, calls in groupby(graph.calls, numbered_module if numbered else _top_level):
        yield key, tuple(calls)


def numbered_module(node: fx.Node) -> str:
    """The outermost numbered module, or an empty string. A region's is that of its calls."""
    paths = (path for call in with_nested(node) for path, _ in layer_path(call))
    return next((path for path in paths if _NUMBERED.search(path)), "")


def _top_level(node: fx.Node) -> str:
    path = layer_path(node)
    return path[0][0] if path else ""


def _merge_without_parameters(graph: Graph, runs: list[_Run]) -> list[_Run]:
    """A run without parameters (an activation, a sum of skips) belongs to the run before it."""
    merged: list[_Run] = []
    for key, calls in runs:
        if merged and not _has_parameters(graph, calls):
            merged[-1] = (merged[-1][0], merged[-1][1] + calls)
        elif merged and not _has_parameters(graph, merged[-1][1]):
            merged[-1] = (key, merged[-1][1] + calls)
        else:
            merged.append((key, calls))
    return merged


def _has_parameters(graph: Graph, calls: Sequence[fx.Node]) -> bool:
    return any(node in graph.parameters for call in calls for node in call.all_input_nodes)


def _legal(graph: Graph, runs: list[_Run]) -> list[_Run]:
    """Moves each boundary on to the next legal one; runs that vanish join the one before."""
    legal: list[_Run] = []
    end = reached = 0
    for key, calls in runs:
        end += len(calls)
        stop = end
        while stop in graph.forbidden_cuts and stop < len(graph.calls):
            stop += 1
        if stop <= reached:
            legal[-1] = (_joined(legal[-1][0], key), legal[-1][1])
            continue
        legal.append((key, graph.calls[reached:stop]))
        reached = stop
    return _merge_without_own_calls(legal)


def _merge_without_own_calls(runs: list[_Run]) -> list[_Run]:
    """A run whose own module's calls have all gone to the one before it joins that."""
    merged: list[_Run] = []
    for key, calls in runs:
        if key and _SPAN not in key and key not in _modules_of(calls):
            merged[-1] = (_joined(merged[-1][0], key), merged[-1][1] + calls)
        else:
            merged.append((key, calls))
    return merged


def _modules_of(calls: Iterable[fx.Node]) -> dict[str, str]:
    """Paths of the modules that the calls were made in → names of their classes."""
    return dict(pair for call in calls for inner in with_nested(call) for pair in layer_path(inner))


def _joined(first: str, last: str) -> str:
    return f"{first.partition(_SPAN)[0] or 'embedding'}{_SPAN}{last or 'head'}"


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
    for end in ends:
        layer = next(n for n, border in enumerate(borders) if end <= border)
        start, length = ([0, *borders][layer], borders[layer] - [0, *borders][layer])
        there, width = ([0, *others][layer], others[layer] - [0, *others][layer])
        place = there + -(-(end - start) * width // length)
        while place in other.forbidden_cuts:
            place += 1
        found.append(min(place, len(other.calls)))
    return tuple(dict.fromkeys(found))


def pieces_of(graph: Graph, layers: Sequence[Layer], ends: Sequence[int]) -> tuple[Layer, ...]:
    """The layers, cut also at the positions `ends`: every end is then the end of a piece.

    Raises: ModelError unless the ends grow, are legal places to cut, and reach the last call.
    """
    _check_ends(graph, ends)
    wanted, start = frozenset(ends), 0
    pieces: list[Layer] = []
    for layer in layers:
        stop = start + len(layer.calls)
        inner = [position for position in range(start + 1, stop) if position in wanted]
        spans = list(pairwise([start, *inner, stop]))
        for number, (first, last) in enumerate(spans, 1):
            pieces.append(_piece(graph, layer, graph.calls[first:last], number, len(spans)))
        start = stop
    return tuple(pieces)


def _check_ends(graph: Graph, ends: Sequence[int]) -> None:
    calls = graph.calls
    if not ends or ends[-1] != len(calls) or any(a >= b for a, b in pairwise([0, *ends])):
        raise ModelError(
            f"the cut's ends {list(ends)} do not grow from 1 to {len(calls)}, the number of the "
            "model's operations"
        )
    for end in graph.forbidden_cuts.intersection(ends[:-1]):
        raise ModelError(
            f"the cut at {end} separates {calls[end - 1].name} from {calls[end].name}, "
            "which belong together",
            "cut at a position that the graph does not forbid",
        )


def _piece(
    graph: Graph, layer: Layer, calls: tuple[fx.Node, ...], number: int, count: int
) -> Layer:
    if count == 1:
        return layer
    role = "Start" if number == 1 else "End" if number == count else "Middle"
    return Layer(
        name=f"{layer.name} ({number}/{count})",
        kind=f"{layer.kind}{role}",
        prefix=layer.prefix,
        calls=calls,
        **flows(graph, calls),
    )


def _layer(graph: Graph, key: str, calls: tuple[fx.Node, ...], index: int, last: int) -> Layer:
    name, kind = _role(graph, key, calls, index, last)
    return Layer(
        name=name,
        kind=kind,
        prefix="" if _SPAN in key else key.partition("@")[0],
        calls=calls,
        **flows(graph, calls),
    )


def flows(graph: Graph, calls: Sequence[fx.Node]) -> dict[str, tuple[fx.Node, ...]]:
    """What calls in a row read and give, by the names of a `Layer`'s fields."""
    inside = set(calls)
    read = list(dict.fromkeys(node for call in calls for node in call.all_input_nodes))
    return {
        "parameters": tuple(node for node in read if node in graph.parameters),
        "constants": tuple(node for node in read if node in graph.constants),
        "inputs": tuple(
            node
            for node in read
            if node in graph.batch or (node.op == "call_function" and node not in inside)
        ),
        "outputs": tuple(
            node
            for node in calls
            if node is graph.loss or any(_reads(user, graph, inside) for user in node.users)
        ),
    }


def _reads(user: fx.Node, graph: Graph, inside: set[fx.Node]) -> bool:
    return user.op == "call_function" and user not in inside and user in graph.call_set


def _role(
    graph: Graph, key: str, calls: tuple[fx.Node, ...], index: int, last: int
) -> tuple[str, str]:
    if _SPAN in key:
        return key, "Layers"
    if key:
        return key, _modules_of(calls)[key].rpartition(".")[2]
    if last == 0:
        return "model", graph.model_name
    if index == 0:
        return "embedding", "Embedding"
    return ("head", "Head") if index == last else (f"middle {index}", "Middle")
