"""`transformers` builds other attention masks while it is exported than while it runs: it then
gives attention an explicit mask, so as not to freeze a decision, and another kernel computes other
last bits. Our shapes are static and the decision is right: these guards let it be made as in eager.

Nothing here imports `transformers`; without it there is nothing to guard.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from atom.graph.tracing.guards import replaced

_MASKS = "transformers.masking_utils"
_EXPORTING = "is_torchdynamo_exporting"
_PACKED = "find_packed_sequence_indices"
_TRACING = "is_tracing"


@contextmanager
def masks_as_in_eager() -> Iterator[None]:
    """While tracing: a causal mask is left to the kernel, as in eager. Position ids that the model
    made itself count up, so they pack no sequences; those that come with the batch might.
    """
    masks = sys.modules.get(_MASKS)
    packed = getattr(masks, _PACKED, None)

    def find_packed(position_ids: torch.Tensor) -> Any:
        assert packed is not None
        return packed(position_ids) if _is_given(position_ids) else None

    with _patched(masks, {_EXPORTING: lambda: False, _PACKED: find_packed}):
        yield


@contextmanager
def masks_whatever_the_values() -> Iterator[None]:
    """While running eagerly, to compare with a traced program: a padding mask that masks nothing
    is applied like any other, because a program does not look at values.
    """
    masks = sys.modules.get(_MASKS)
    tracing, packed = getattr(masks, _TRACING, None), getattr(masks, _PACKED, None)

    def find_packed(position_ids: torch.Tensor) -> Any:
        assert packed is not None
        with _patched(masks, {_TRACING: tracing}):
            return packed(position_ids)

    with _patched(masks, {_TRACING: lambda *_, **__: True, _PACKED: find_packed}):
        yield


def _patched(module: Any, replacements: dict[str, Any]) -> AbstractContextManager[None]:
    """Other versions of the library may lack a name: then there is nothing to replace."""
    return replaced(module, {n: new for n, new in replacements.items() if hasattr(module, n)})


def _is_given(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values depend on an input of the graph being traced."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(tensor, mode.tracer, None) if mode is not None else None
    if slot is None:
        return False
    nodes = [slot.proxy.node]
    seen = set(nodes)
    for node in nodes:
        fresh = [one for one in node.all_input_nodes if one not in seen]
        nodes += fresh
        seen.update(fresh)
    return any(node.op == "placeholder" for node in nodes)
