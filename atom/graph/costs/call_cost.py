"""Cost of one call, observed by running it alone on fake tensors without allocations.

The observation records all kernels of the call and of its backward, with the bytes that they read
and write and their floating-point operations; the memory that autograd keeps; and the peak memory.
Composite operators appear as the operators of which they consist. The cost depends only on the
operator and on the forms of its arguments, so calls of equal form share one observation.
"""

import math
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from atom.graph import traced
from atom.graph.chain import Kernel
from atom.graph.ir import ValueSpec


@dataclass(frozen=True)
class CallCost:
    """Cost of one call for one micro-batch. Numbers of arguments and results are positions."""

    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    keeps_arguments: frozenset[int] = frozenset()
    """Positions of the arguments that autograd keeps for backward."""
    keeps_results: frozenset[int] = frozenset()
    """Positions of the results that autograd keeps for backward."""
    keeps_more_bytes: int = 0
    """Other bytes that are kept for backward: statistics, masks."""
    forward_peak_bytes: int = 0
    """Peak of the memory that forward allocates, including results and kept memory."""
    backward_peak_bytes: int = 0
    """Peak of the memory that backward allocates, including gradients of results and arguments."""


def form_key(node: fx.Node, given: Sequence[ValueSpec]) -> Hashable:
    """Return a key that is equal for calls of the same operator on arguments of equal form."""
    index = {argument: number for number, argument in enumerate(traced.arguments_of(node))}
    return str(node.target), traced.arguments_text(node, index), tuple(given)


def dissect(node: fx.Node, given: Sequence[ValueSpec], fused: bool) -> CallCost:
    """Return the cost of a call.

    If the call cannot run on fake tensors, the cost is estimated from the sizes of its results.

    Args:
        node: the call.
        given: forms of its arguments.
        fused: True to use the costs of a GPU's fused kernels.
    """
    try:
        return _dissect(node, given, fused)
    except Exception:  # noqa: BLE001 - a user's operator may raise anything on fake tensors
        return _by_results(node)


def _dissect(node: fx.Node, given: Sequence[ValueSpec], fused: bool) -> CallCost:
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs, leaves = _inputs(node, given)
        kept: list[torch.Tensor] = []
        ledger = _Ledger(inputs.values())

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            with ledger:
                results = _forward(node, inputs, fused)
            forward, peak = ledger.next_phase()
            held = ledger.live_bytes
            with ledger:
                _backward(results, leaves)
            backward, backward_peak = ledger.next_phase()
        memory = [traced.storage_of(inputs[argument]) for argument in traced.arguments_of(node)]
        created = [traced.storage_of(tensor) for tensor in results]
        stored = {traced.storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
        more_bytes = sum(stored[storage] for storage in stored.keys() - {*memory, *created})
        if getattr(node.target, "namespace", "") == traced.FUNCTIONS:
            # The function may keep tensors that autograd does not know. So all memory that it made
            # and still holds counts, except its results.
            sizes = {traced.storage_of(each): each.untyped_storage().nbytes() for each in results}
            made_bytes = sum(sizes[storage] for storage in sizes.keys() - set(memory))
            more_bytes = max(more_bytes, held - made_bytes)
        return CallCost(
            forward=tuple(forward),
            backward=tuple(backward),
            keeps_arguments=frozenset(i for i, storage in enumerate(memory) if storage in stored),
            keeps_results=frozenset(i for i, storage in enumerate(created) if storage in stored),
            keeps_more_bytes=more_bytes,
            forward_peak_bytes=peak,
            backward_peak_bytes=backward_peak,
        )


def _inputs(
    node: fx.Node, given: Sequence[ValueSpec]
) -> tuple[dict[fx.Node, torch.Tensor], list[torch.Tensor]]:
    """Return fake arguments by node, and the leaves that require a gradient."""
    inputs, leaves = {}, []
    mutable = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
    for argument, spec in zip(traced.arguments_of(node), given, strict=True):
        tensor = spec.empty()
        leaves += [tensor] if spec.needs_grad else []
        # Autograd forbids changes in place of such leaves, and of some views, but not of copies.
        inputs[argument] = tensor.clone() if mutable else tensor
    return inputs, leaves


def _forward(
    node: fx.Node, inputs: Mapping[fx.Node, torch.Tensor], fused: bool
) -> list[torch.Tensor]:
    """Run the call with gradients enabled and return all tensors of its result, in order."""

    def given(argument: fx.Node) -> Any:
        return inputs[argument] if argument in inputs else traced.nested_graph(argument)

    target: Any
    target, args, kwargs = _as_on_gpu(node) if fused else (node.target, node.args, node.kwargs)
    with torch.enable_grad():
        result = target(*map_arg(args, given), **map_arg(kwargs, given))
    return traced.tensors_of(result)


def _as_on_gpu(node: fx.Node) -> tuple[Any, Any, Any]:
    """Return (target, args, kwargs) of a call with the memory use of a GPU's kernels.

    On a GPU, dropout keeps one byte per element and attention never keeps its matrix of scores.
    """
    name = str(getattr(node.target, "_opname", ""))
    if name == "dropout" and traced.bind(node)["train"]:
        return _dropout, (traced.bind(node)["input"], traced.bind(node)["p"]), {}
    if name == "scaled_dot_product_attention":
        return node.target, (), {**traced.bind(node), "dropout_p": 0.0}
    return node.target, node.args, node.kwargs


def _dropout(hidden: torch.Tensor, probability: float) -> torch.Tensor:
    return torch.native_dropout(hidden, probability, True)[0]


def _backward(results: Iterable[torch.Tensor], leaves: Sequence[torch.Tensor]) -> None:
    roots = [tensor for tensor in results if tensor.requires_grad]
    if roots and leaves:
        gradients = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, leaves, gradients, allow_unused=True)


def _by_results(node: fx.Node) -> CallCost:
    tensors = traced.tensors_of(node.meta.get("val"))
    made_bytes = sum(tensor.nbytes for tensor in tensors)
    kernels = tuple(Kernel(0.0, 2 * tensor.nbytes, tensor.dtype) for tensor in tensors)
    return CallCost(
        forward=kernels,
        backward=kernels,
        keeps_arguments=frozenset(range(len(traced.arguments_of(node)))),
        keeps_results=frozenset(range(len(tensors))),
        forward_peak_bytes=made_bytes,
        backward_peak_bytes=2 * made_bytes,
    )


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of all kernels and of the memory in use.

    Args:
        given: tensors whose memory does not count, because it exists already.
    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {traced.storage_of(tensor) for tensor in given}
        self._kernels: list[Kernel] = []
        self.live_bytes = self._peak = self._before = 0

    def next_phase(self) -> tuple[list[Kernel], int]:
        """Start a new phase.

        Returns:
            Kernels of the last phase, and its peak of live bytes above those at its start.
        """
        kernels, peak = self._kernels, self._peak - self._before
        self._kernels, self._before, self._peak = [], self.live_bytes, self.live_bytes
        return kernels, peak

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim":
            return result
        read, written = _distinct_tensors((args, kwargs)), _distinct_tensors(result)
        self._allocated(written)
        if not _is_free(func, read, written):
            flops = _flops(func, args, kwargs or {}, result)
            moved = (min(t.nbytes, t.untyped_storage().nbytes()) for t in read + written)
            self._kernels.append(Kernel(flops, sum(moved), written[0].dtype))
        return result

    def _allocated(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage, key = tensor.untyped_storage(), traced.storage_of(tensor)
            if key not in self._known:
                self._known.add(key)
                self.live_bytes += storage.nbytes()
                self._peak = max(self._peak, self.live_bytes)
                weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size_bytes: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size_bytes


_MEMORY_ONLY = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "ones_like",
}  # fmt: skip
"""Operators that only make memory. (`ones_like` makes gradients that later calls would provide.)"""


def _is_free(func: Any, read: Iterable[torch.Tensor], written: Sequence[torch.Tensor]) -> bool:
    """Return True for operators that move no data: views and uninitialised memory."""
    if _name(func) in _MEMORY_ONLY or not written:
        return True
    memory = {traced.storage_of(tensor) for tensor in read}
    return not func._schema.is_mutable and all(
        traced.storage_of(tensor) in memory for tensor in written
    )


def _flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
    packet = func._overloadpacket
    if "_for_cpu" in _name(func):  # the table has only the GPU operator
        packet = getattr(torch.ops.aten, _name(func).replace("_for_cpu", ""), packet)
    formula = flop_registry.get(packet)
    if formula is None:
        return float(_other_flops(_name(func), args, result))
    if "scaled_dot_product" in _name(func):
        args = _as_many_heads(args)
    return float(formula(*args, **kwargs, out_val=result))


def _as_many_heads(attention: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments of attention in which keys and values have as many heads as queries.

    Keys and values that several query heads share are computed with once per query head. The
    formula of PyTorch 2.11 rejects different numbers of heads. The four-dimensional tensors are
    replaced by their shapes.
    """
    wide = [isinstance(each, torch.Tensor) and each.dim() == 4 for each in attention]
    heads = max(each.shape[1] for each, is_wide in zip(attention, wide, strict=True) if is_wide)
    return tuple(
        torch.Size((each.shape[0], heads, *each.shape[2:])) if is_wide else each
        for each, is_wide in zip(attention, wide, strict=True)
    )


def _other_flops(name: str, args: tuple[Any, ...], result: Any) -> Any:
    """Return the operations of operators that PyTorch's table of formulas lacks."""
    if name in ("_grouped_mm", "grouped_mm_fallback"):
        # Each row is multiplied by the matrix of one expert: [M, K] · [E, K, N]
        return 2.0 * math.prod(result.shape) * args[0].shape[-1]
    if name == "grouped_mm_fallback_backward":
        # Gradients of the rows and of the matrices, from incoming gradients [M, N].
        return 4.0 * args[0].numel() * args[1].shape[-1]
    return 0.0


def _name(func: Any) -> str:
    return str(func._schema.name.partition("::")[2])


def _distinct_tensors(value: Any) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in traced.tensors_of(value)}.values())
