"""Calls whose results would not be what the module computes."""

from typing import Any

import torch
from torch import fx

from atom.base.errors import ModelError
from atom.graph.traced import bind, is_getitem
from atom.graph.tracing.failures import place_of

_REGIONS = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
"""The only nested graphs we know: `with torch.no_grad()`, `with torch.autocast(…)`."""


def refuse_transformations(graph: fx.Graph) -> None:
    """Before the graph is run: entering one half would leave torch's own state in disorder.

    Raises: ModelError with the place.
    """
    for node in graph.nodes:
        if "_functorch" in str(getattr(node.target, "__module__", "")):
            raise ModelError(
                f"the model uses torch.vmap or torch.func at {place_of(node)}, "
                "which cannot be traced",
                "write it with ordinary operations on whole batches",
            )


def refuse_unfaithful(node: fx.Node) -> None:
    """Raises: ModelError with the place, unless the call gives tensors whose gradients we keep."""
    value, place = node.meta.get("val"), place_of(node)
    nested = isinstance(node.target, torch._ops.HigherOrderOperator)
    if nested and str(node.target) not in _REGIONS:
        raise ModelError(
            f"the model uses {node.target} at {place}",
            "of nested regions only no_grad and autocast can be traced",
        )
    if not nested and not _gives_tensors(value):
        raise ModelError(f"{node.target} at {place} gives a number that depends on data")
    if not nested and getattr(node.target, "_schema", None) and bind(node).get("sparse") is True:
        raise ModelError(
            f"{node.target} at {place} gives a sparse gradient; gradients lie in dense memory here",
            "leave sparse=True out",
        )
    if isinstance(value, list | tuple) and not all(map(is_getitem, node.users)):
        raise ModelError(f"{node.target} at {place} passes several tensors on as one value")


def _gives_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_gives_tensors(item) for item in value)
    return value is None or isinstance(value, torch.Tensor)
