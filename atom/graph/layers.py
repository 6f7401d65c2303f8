"""Layers: the pieces a model is cut between.

A *layer* is a run of consecutive calls made in the same numbered module ("blocks.3"). What comes
before the first numbered module is the embedding, what follows the last is the head. A model
without numbered modules is grouped by its top-level modules instead.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import fx

from atom.graph.traced import Graph, layer_path, with_nested

_NUMBERED = re.compile(r"(^|\.)\d+(@\d+)?$")
_SPAN = " … "


@dataclass(frozen=True)
class Layer:
    """A run of consecutive calls, with what flows in and out of it."""

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
    numbered = any(_numbered(node) for node in graph.calls)
    for key, calls in groupby(graph.calls, _numbered if numbered else _top_level):
        yield key, tuple(calls)


def _numbered(node: fx.Node) -> str:
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
    return legal


def _joined(first: str, last: str) -> str:
    return f"{first.partition(_SPAN)[0] or 'embedding'}{_SPAN}{last or 'head'}"


def _layer(graph: Graph, key: str, calls: tuple[fx.Node, ...], index: int, last: int) -> Layer:
    inside = set(calls)
    read = list(dict.fromkeys(node for call in calls for node in call.all_input_nodes))
    name, kind = _role(graph, key, calls, index, last)
    return Layer(
        name=name,
        kind=kind,
        prefix="" if _SPAN in key else key.partition("@")[0],
        calls=calls,
        parameters=tuple(node for node in read if node in graph.parameters),
        constants=tuple(node for node in read if node in graph.constants),
        inputs=tuple(
            node
            for node in read
            if node in graph.batch or (node.op == "call_function" and node not in inside)
        ),
        outputs=tuple(
            node
            for node in calls
            if node is graph.loss or any(_reads(user, graph, inside) for user in node.users)
        ),
    )


def _reads(user: fx.Node, graph: Graph, inside: set[fx.Node]) -> bool:
    return user.op == "call_function" and user not in inside and user in graph.call_set


def _role(
    graph: Graph, key: str, calls: tuple[fx.Node, ...], index: int, last: int
) -> tuple[str, str]:
    if _SPAN in key:
        return key, "Layers"
    if key:
        kinds = dict(
            pair for call in calls for inner in with_nested(call) for pair in layer_path(inner)
        )
        return key, kinds[key].rpartition(".")[2]
    if last == 0:
        return "model", graph.model_name
    if index == 0:
        return "embedding", "Embedding"
    return ("head", "Head") if index == last else (f"middle {index}", "Middle")
