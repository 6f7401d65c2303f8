"""What a model computes again in backward by its own wish: `torch.utils.checkpoint` regions.

Tracing runs a checkpointed function like any other, and the region would be lost: the numbers are
the same, the memory is not. So every call made within a region is marked while it is traced, and
what is still together afterwards is a *span* of the graph.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from torch import fx

from atom.graph.layers import numbered_module
from atom.graph.traced import CHECKPOINT_MARK, Span, is_getitem, is_region, with_nested


def recomputed_spans(calls: Sequence[fx.Node], loss: fx.Node) -> tuple[Span, ...]:
    """The spans of checkpointed calls, in order.

    Left out is a region around a whole numbered module: that is what a sub-model is, and a
    sub-model is computed again as it is. Left out, too, is what gives nothing to others.
    """
    marks = _marks(calls)
    layer_calls = _calls_by_layer(calls)
    spans, end = [], 0
    for mark, run in groupby(calls, marks.__getitem__):
        nodes = list(run)
        end += len(nodes)
        if mark is None or _holds_layer(nodes, layer_calls):
            continue
        if _gives(nodes, loss, set(calls)):
            spans.append((end - len(nodes), end))
    return tuple(spans)


def _marks(calls: Iterable[fx.Node]) -> Mapping[fx.Node, int | None]:
    marks: dict[fx.Node, int | None] = {}
    for node in calls:
        if is_getitem(node) and node.all_input_nodes[0] in marks:
            marks[node] = marks[node.all_input_nodes[0]]
        else:
            inner = [call for call in with_nested(node) if not is_region(call)]
            found = {(call.meta.get("custom") or {}).get(CHECKPOINT_MARK) for call in inner}
            marks[node] = found.pop() if len(found) == 1 else None
    return marks


def _calls_by_layer(calls: Iterable[fx.Node]) -> Counter[str]:
    """Numbered module → how many calls are made in it."""
    return Counter(path for call in calls if (path := numbered_module(call)))


def _holds_layer(nodes: Iterable[fx.Node], layer_calls: Counter[str]) -> bool:
    return any(number == layer_calls[path] for path, number in _calls_by_layer(nodes).items())


def _gives(nodes: Iterable[fx.Node], loss: fx.Node, calls: set[fx.Node]) -> bool:
    """Whether others use what is made here. Results of one call that are picked apart elsewhere
    are nothing that a span could give."""
    inside = set(nodes)
    users = {user for node in inside for user in node.users if user in calls - inside}
    return bool(users or loss in inside) and not any(map(is_getitem, users))
