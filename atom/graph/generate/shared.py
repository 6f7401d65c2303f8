"""Values that are the same in every micro-batch: masks, positions, rotary tables.

They are made of sizes and constants alone: no batch entry, no parameter, no random number goes
into them. Whoever runs many micro-batches through a program needs one of each, not one per
micro-batch.
"""

import torch
from torch import fx

from atom.graph.traced import Graph, with_nested
from atom.graph.tracing.effects import is_random

_PYTORCH = {"aten", "prims"}
"""Operators of others may draw random numbers, or count their calls, and not say so."""


def shared_values(graph: Graph) -> frozenset[fx.Node]:
    """Calls whose results are the same in every micro-batch."""
    shared: set[fx.Node] = set()
    # Other values with a shared one among their ancestors: they might alias its memory.
    touched: set[fx.Node] = set()
    for node in graph.calls:
        given = [argument for argument in node.all_input_nodes if argument.op != "get_attr"]
        same = all(argument in shared or argument in graph.constants for argument in given)
        if same and all(map(repeats, with_nested(node))):
            shared.add(node)
        elif any(argument in shared or argument in touched for argument in given):
            if _writes(node):
                return frozenset()
            touched.add(node)
    return frozenset(shared)


def repeats(call: fx.Node) -> bool:
    """Whether the call gives the same for the same, as far as is known: no random numbers."""
    known = not isinstance(call.target, torch._ops.OpOverload) or call.target.namespace in _PYTORCH
    return known and not is_random(call)


def _writes(node: fx.Node) -> bool:
    return any(
        argument.alias_info is not None and argument.alias_info.is_write
        for call in with_nested(node)
        for argument in getattr(getattr(call.target, "_schema", None), "arguments", ())
    )
