"""What one call costs, found by running it alone on fake tensors: nothing is allocated.

Every kernel that the call and its backward launch is counted, with the bytes it reads and writes
and its floating-point operations, and so is what autograd keeps and how much memory is in use at
the most. Composite operators are seen as what they are made of. All this depends on the operator
and on its arguments' forms alone, so it is asked once for all calls of one form.
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

from atom.graph.chain import Kernel
from atom.graph.ir import ValueSpec
from atom.graph.traced import (
    FUNCTIONS,
    arguments_of,
    arguments_text,
    bind,
    nested_graph,
    storage_of,
    tensors_of,
)


@dataclass(frozen=True)
class CallCost:
    """One call on one micro-batch. Arguments and results go by their positions."""

    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    keeps_arguments: frozenset[int] = frozenset()
    keeps_results: frozenset[int] = frozenset()
    keeps_more_bytes: int = 0
    """Kept for backward besides: statistics, masks."""
    forward_peak_bytes: int = 0
    """The most memory that forward adds, results and what is kept included."""
    backward_peak_bytes: int = 0
    """The most that backward adds, gradients of results and arguments included."""


def form_key(node: fx.Node, given: Sequence[ValueSpec]) -> Hashable:
    """Equal for calls that do the same to tensors that look the same."""
    index = {argument: number for number, argument in enumerate(arguments_of(node))}
    return str(node.target), arguments_text(node, index), tuple(given)


def dissect(node: fx.Node, given: Sequence[ValueSpec], fused: bool) -> CallCost:
    """The cost of a call whose arguments look like `given`; `fused`: with a GPU's kernels.

    A call that cannot be run on fake tensors is judged by the tensors it gives.
    """
    try:
        return _dissect(node, given, fused)
    except Exception:  # noqa: BLE001 - a user's operator, on fakes, raises what it likes
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
                outcome = _forward(node, inputs, fused)
            going, peak = ledger.next_phase()
            held = ledger.live_bytes
            with ledger:
                _backward(outcome, leaves)
            coming, backward_peak = ledger.next_phase()
        memory = [storage_of(inputs[argument]) for argument in arguments_of(node)]
        own = [storage_of(tensor) for tensor in outcome]
        stored = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
        more_bytes = sum(stored[storage] for storage in stored.keys() - {*memory, *own})
        if getattr(node.target, "namespace", "") == FUNCTIONS:
            # It may keep tensors without telling autograd: all that it made and still holds.
            results = {storage_of(each): each.untyped_storage().nbytes() for each in outcome}
            given_bytes = sum(results[storage] for storage in results.keys() - set(memory))
            more_bytes = max(more_bytes, held - given_bytes)
        return CallCost(
            forward=tuple(going),
            backward=tuple(coming),
            keeps_arguments=frozenset(i for i, storage in enumerate(memory) if storage in stored),
            keeps_results=frozenset(i for i, storage in enumerate(own) if storage in stored),
            keeps_more_bytes=more_bytes,
            forward_peak_bytes=peak,
            backward_peak_bytes=backward_peak,
        )


def _inputs(
    node: fx.Node, given: Sequence[ValueSpec]
) -> tuple[dict[fx.Node, torch.Tensor], list[torch.Tensor]]:
    """Arguments by node, and the leaves among them that want a gradient."""
    inputs, leaves = {}, []
    mutable = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
    for argument, spec in zip(arguments_of(node), given, strict=True):
        tensor = spec.empty()
        leaves += [tensor] if spec.needs_grad else []
        # A leaf that wants a gradient, and a view, may not be changed in place; a copy may.
        inputs[argument] = tensor.clone() if mutable else tensor
    return inputs, leaves


def _forward(
    node: fx.Node, inputs: Mapping[fx.Node, torch.Tensor], fused: bool
) -> list[torch.Tensor]:
    """The call's tensors, nested ones in order; run with gradients on."""

    def given(argument: fx.Node) -> Any:
        return inputs[argument] if argument in inputs else nested_graph(argument)

    target: Any
    target, args, kwargs = _as_on_gpu(node) if fused else (node.target, node.args, node.kwargs)
    with torch.enable_grad():
        result = target(*map_arg(args, given), **map_arg(kwargs, given))
    return tensors_of(result)


def _as_on_gpu(node: fx.Node) -> tuple[Any, Any, Any]:
    """The call, with the slow path that a CPU takes replaced by what a GPU runs.

    Dropout keeps one byte per element there, and attention never its matrix of scores.
    """
    name = str(getattr(node.target, "_opname", ""))
    if name == "dropout" and bind(node)["train"]:
        return _dropout, (bind(node)["input"], bind(node)["p"]), {}
    if name == "scaled_dot_product_attention":
        return node.target, (), {**bind(node), "dropout_p": 0.0}
    return node.target, node.args, node.kwargs


def _dropout(hidden: torch.Tensor, probability: float) -> torch.Tensor:
    return torch.native_dropout(hidden, probability, True)[0]


def _backward(outcome: Iterable[torch.Tensor], leaves: Sequence[torch.Tensor]) -> None:
    roots = [tensor for tensor in outcome if tensor.requires_grad]
    if roots and leaves:
        gradients = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, leaves, gradients, allow_unused=True)


def _by_results(node: fx.Node) -> CallCost:
    tensors = tensors_of(node.meta.get("val"))
    made_bytes = sum(tensor.nbytes for tensor in tensors)
    kernels = tuple(Kernel(0.0, 2 * tensor.nbytes, tensor.dtype) for tensor in tensors)
    return CallCost(
        forward=kernels,
        backward=kernels,
        keeps_arguments=frozenset(range(len(arguments_of(node)))),
        keeps_results=frozenset(range(len(tensors))),
        forward_peak_bytes=made_bytes,
        backward_peak_bytes=2 * made_bytes,
    )


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every kernel, and how much memory lives at any time."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {storage_of(tensor) for tensor in given}
        self._kernels: list[Kernel] = []
        self.live_bytes = self._peak = self._before = 0

    def next_phase(self) -> tuple[list[Kernel], int]:
        """The kernels since the last phase, and the most bytes alive beyond what was then."""
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
        read, written = _each_once((args, kwargs)), _each_once(result)
        self._allocated(written)
        if not _is_free(func, read, written):
            flops = _flops(func, args, kwargs or {}, result)
            moved = (min(t.nbytes, t.untyped_storage().nbytes()) for t in read + written)
            self._kernels.append(Kernel(flops, sum(moved), written[0].dtype))
        return result

    def _allocated(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage, key = tensor.untyped_storage(), storage_of(tensor)
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
"""What only makes memory (`ones_like` makes the gradients that others would hand in)."""


def _is_free(func: Any, read: Iterable[torch.Tensor], written: Sequence[torch.Tensor]) -> bool:
    """Views and memory not yet written cost nothing."""
    if _name(func) in _MEMORY_ONLY or not written:
        return True
    memory = {storage_of(tensor) for tensor in read}
    return not func._schema.is_mutable and all(storage_of(tensor) in memory for tensor in written)


def _flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
    packet = func._overloadpacket
    if "_for_cpu" in _name(func):  # the table has its like on a GPU
        packet = getattr(torch.ops.aten, _name(func).replace("_for_cpu", ""), packet)
    formula = flop_registry.get(packet)
    if formula is None:
        return float(_flops_beyond(_name(func), args, result))
    if "scaled_dot_product" in _name(func):
        args = _as_many_heads(args)
    return float(formula(*args, **kwargs, out_val=result))


def _as_many_heads(attention: Sequence[Any]) -> tuple[Any, ...]:
    """Its arguments, keys and values as shapes with a head for each of the queries: one that
    several share is computed with as often, but the formula of PyTorch 2.11 refuses that."""
    wide = [isinstance(each, torch.Tensor) and each.dim() == 4 for each in attention]
    heads = max(each.shape[1] for each, is_wide in zip(attention, wide, strict=True) if is_wide)
    return tuple(
        torch.Size((each.shape[0], heads, *each.shape[2:])) if is_wide else each
        for each, is_wide in zip(attention, wide, strict=True)
    )


def _flops_beyond(name: str, args: tuple[Any, ...], result: Any) -> Any:
    """Of operators that PyTorch's own table of formulas leaves out."""
    if name in ("_grouped_mm", "grouped_mm_fallback"):
        # Each row meets one expert's matrix: [M, K] · [E, K, N]
        return 2.0 * math.prod(result.shape) * args[0].shape[-1]
    if name == "grouped_mm_fallback_backward":
        # Gradients of the rows and of the matrices, from the [M, N] coming in.
        return 4.0 * args[0].numel() * args[1].shape[-1]
    return 0.0


def _name(func: Any) -> str:
    return str(func._schema.name.partition("::")[2])


def _each_once(value: Any) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors_of(value)}.values())
