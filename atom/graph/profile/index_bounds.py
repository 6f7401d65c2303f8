"""Below what the integers that a call takes must stay, so that made-up ones are valid.

A table looked up at one row only is faster than it is in earnest, so zeros are a last resort.
"""

from torch import fx

from atom.graph.traced import Graph
from atom.graph.tracing.effects import bind

_SAME_VALUES = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "flatten",
    "contiguous", "to", "clone", "detach", "alias", "select", "pad",
}  # fmt: skip


def index_bounds(graph: Graph) -> dict[str, int]:
    """By name, the bound of every batch entry and value of integers that is only an index."""
    bounds = {}
    for node in (*graph.batch, *graph.calls):
        spec = graph.specs.get(node)
        if spec is not None and not spec.dtype.is_floating_point:
            bound = value_bound(node, graph)
            if bound is not None:
                bounds[graph.value_name(node)] = bound
    return bounds


def value_bound(node: fx.Node, graph: Graph) -> int | None:
    """What every user of a value allows; None if one of them is not known to look up."""
    bounds = [argument_bound(user, node, graph) for user in node.users if user in graph.call_set]
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known and len(known) == len(bounds) else None


def argument_bound(user: fx.Node, argument: fx.Node, graph: Graph) -> int | None:
    """What one call allows of an argument."""
    name = str(getattr(user.target, "_opname", ""))
    if name in _SAME_VALUES:
        return value_bound(user, graph)
    if name == "embedding" and user.args[1] is argument:
        return _extent(user.args[0], 0, graph)
    if name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd") and user.args[1] is argument:
        classes = user.args[0]
        dimensions = len(graph.specs[classes].shape) if isinstance(classes, fx.Node) else 0
        return _extent(classes, min(1, dimensions - 1), graph)
    if name in ("gather", "index_select") and bind(user).get("index") is argument:
        return _extent(user.args[0], int(str(bind(user)["dim"])), graph)
    return None


def _extent(node: object, dimension: int, graph: Graph) -> int | None:
    if isinstance(node, fx.Node) and node in graph.specs:
        return graph.specs[node].shape[dimension]
    return None
