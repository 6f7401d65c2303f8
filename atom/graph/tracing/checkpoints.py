"""What a model computes again in backward by its own wish: `torch.utils.checkpoint` regions.

Tracing runs a checkpointed function like any other, and the region would be lost: the numbers are
the same, the memory is not. So every call made within a region is marked while it is traced, and
what is still together afterwards is a *span* of the graph.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, groupby
from typing import Any

import torch.utils.checkpoint
from torch import fx
from torch.fx.traceback import annotate, preserve_node_meta

from atom.graph.layers import numbered_module
from atom.graph.traced import Span, is_getitem, with_nested

_MARK = "atom_checkpoint"


@contextmanager
def marked_checkpoints() -> Iterator[None]:
    """While tracing: calls within a checkpointed region (the outermost, where regions are nested)
    carry its number. What the region does besides, keeping random states and hooks, is left out.
    """
    # Not `checkpoint` itself: users have it under names of their own. What it ends in is looked
    # up here, at every call.
    module: Any = torch.utils.checkpoint
    original = module._checkpoint_without_reentrant_generator
    numbers = count()
    inside = False

    def mark(*_: Any, **__: Any) -> Iterator[None]:
        nonlocal inside
        if inside:
            yield
            return
        inside = True
        try:
            with preserve_node_meta(), annotate({_MARK: next(numbers)}):
                yield
        finally:
            inside = False

    module._checkpoint_without_reentrant_generator = mark
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = original


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
            found = {_mark(call) for call in with_nested(node) if not _is_region(call)}
            marks[node] = found.pop() if len(found) == 1 else None
    return marks


def _mark(call: fx.Node) -> int | None:
    mark: int | None = (call.meta.get("custom") or {}).get(_MARK)
    return mark


def _is_region(call: fx.Node) -> bool:
    return isinstance(call.target, torch._ops.HigherOrderOperator)


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
