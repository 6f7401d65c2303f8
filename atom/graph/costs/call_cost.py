"""What one call costs, found by running it alone on fake tensors: nothing is allocated.

Every kernel that the call and its backward launch is counted, with the bytes it reads and writes
and its floating-point operations, and so is what autograd keeps and how much memory is in use at
the most. Composite operators are seen as what they are made of.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from atom.graph.costs.alone import Form, Outcome, arguments_of, backward, forward, make_inputs


@dataclass(frozen=True)
class Kernel:
    """One launch: products are counted as two operations each, all else only by its bytes."""

    flops: float
    moved_bytes: int
    """Read and written."""
    dtype: torch.dtype
    """Of the result: which of a device's rates holds."""


@dataclass(frozen=True)
class Result:
    """A tensor that a call gives. It shares memory with argument `alias_of`, or has its own."""

    form: Form
    alias_of: int | None
    new_bytes: int
    """Memory of its own; 0 where it has none."""


@dataclass(frozen=True)
class CallCost:
    """One call on one micro-batch. Arguments and results are named by their positions."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    results: tuple[Result, ...]
    single: bool
    """Whether the call gives one tensor, not a list of them."""
    keeps_arguments: frozenset[int]
    keeps_results: frozenset[int]
    keeps_more_bytes: int
    """Kept for backward besides: statistics, masks."""
    forward_peak_bytes: int
    """The most memory that forward adds, results and what is kept included."""
    backward_peak_bytes: int
    """The most that backward adds, gradients of results and arguments included."""


def dissect(node: fx.Node, forms: Sequence[Form], fused: bool) -> CallCost:
    """The cost of a call whose arguments have `forms`; `fused`: with a GPU's kernels.

    A call that cannot be run on fake tensors is judged by the tensors it gives.
    """
    try:
        return _dissect(node, forms, fused)
    except RuntimeError:  # an operator of the user's that has no fake, or no backward on fakes
        return _by_results(node)


def _dissect(node: fx.Node, forms: Sequence[Form], fused: bool) -> CallCost:
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs, leaves = make_inputs(node, forms, _empty)
        kept: list[torch.Tensor] = []
        ledger = _Ledger(inputs.values())
        with saved_tensors_hooks(_keep_in(kept), _as_it_is):
            with ledger:
                outcome = forward(node, inputs, leaves, fused)
            going, peak = ledger.next_phase()
            with ledger:
                gradients = backward(outcome)
            del gradients
            coming, backward_peak = ledger.next_phase()
        memory = [_storage(inputs[argument]) for argument in arguments_of(node)]
        results = tuple(_results(outcome, memory))
        own = [_storage(tensor) for tensor in outcome.tensors]
        stored = {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
    return CallCost(
        forward=tuple(going),
        backward=tuple(coming),
        results=results,
        single=outcome.single,
        keeps_arguments=frozenset(i for i, storage in enumerate(memory) if storage in stored),
        keeps_results=frozenset(i for i, storage in enumerate(own) if storage in stored),
        keeps_more_bytes=sum(stored[storage] for storage in stored.keys() - {*memory, *own}),
        forward_peak_bytes=peak,
        backward_peak_bytes=backward_peak,
    )


def _results(outcome: Outcome, memory: Sequence[int]) -> Iterable[Result]:
    seen: set[int] = set()
    for tensor in outcome.tensors:
        storage = _storage(tensor)
        alias = memory.index(storage) if storage in memory else None
        fresh = alias is None and storage not in seen
        seen.add(storage)
        size_bytes = tensor.untyped_storage().nbytes() if fresh else 0
        yield Result(Form.of(tensor), alias, size_bytes)


def _by_results(node: fx.Node) -> CallCost:
    seen = node.meta.get("val")
    tensors = [leaf for leaf in tree_leaves(seen) if isinstance(leaf, torch.Tensor)]
    sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
    pairs = list(zip(tensors, sizes, strict=True))
    kernels = tuple(Kernel(0.0, 2 * size, tensor.dtype) for tensor, size in pairs)
    return CallCost(
        forward=kernels,
        backward=kernels,
        results=tuple(Result(Form.of(tensor), None, size) for tensor, size in pairs),
        single=isinstance(seen, torch.Tensor),
        keeps_arguments=frozenset(range(len(arguments_of(node)))),
        keeps_results=frozenset(range(len(tensors))),
        keeps_more_bytes=0,
        forward_peak_bytes=sum(sizes),
        backward_peak_bytes=2 * sum(sizes),
    )


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every kernel, and how much memory lives at any time."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {_storage(tensor) for tensor in given}
        self._kernels: list[Kernel] = []
        self._live = self._peak = self._before = 0

    def next_phase(self) -> tuple[list[Kernel], int]:
        """The kernels since the last phase, and the most bytes alive beyond what was then."""
        kernels, peak = self._kernels, self._peak - self._before
        self._kernels, self._before, self._peak = [], self._live, self._live
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
        read, written = _tensors((args, kwargs)), _tensors(result)
        self._allocated(written)
        if not _is_free(func, read, written):
            self._kernels.append(_kernel(func, args, kwargs or {}, read, written, result))
        return result

    def _allocated(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage, key = tensor.untyped_storage(), _storage(tensor)
            if key not in self._known:
                self._known.add(key)
                self._live += storage.nbytes()
                self._peak = max(self._peak, self._live)
                weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size_bytes: int) -> None:
        self._known.discard(key)
        self._live -= size_bytes


_PICKS = {
    "embedding", "index_select", "gather", "index", "slice_backward", "select_backward",
    "nll_loss_forward", "nll_loss2d_forward",
}  # fmt: skip
"""Kernels that read of their largest argument only what they give."""

_MEMORY_ONLY = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "ones_like",
}  # fmt: skip
"""What only makes memory (`ones_like` makes the gradients that others would hand in)."""


def _is_free(func: Any, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> bool:
    """Views and memory not yet written cost nothing."""
    name = func._schema.name.partition("::")[2]
    if name in _MEMORY_ONLY or not written:
        return True
    memory = {_storage(tensor) for tensor in read}
    return not func._schema.is_mutable and all(_storage(tensor) in memory for tensor in written)


def _kernel(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    result: Any,
) -> Kernel:
    out_bytes = sum(_moved(tensor) for tensor in written)
    in_bytes = [_moved(tensor) for tensor in read]
    if func._schema.name.partition("::")[2] in _PICKS and in_bytes:
        largest = max(range(len(in_bytes)), key=in_bytes.__getitem__)
        in_bytes[largest] = min(in_bytes[largest], out_bytes)
    flops = _flops(func, args, kwargs, result)
    return Kernel(flops, sum(in_bytes) + out_bytes, written[0].dtype)


def _flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
    formula = flop_registry.get(func._overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    own = _FORMULAS.get(func._schema.name.partition("::")[2])
    return own(args, result) if own is not None else 0.0


def _attention(args: tuple[Any, ...], result: Any) -> float:
    """Scores and mixing, [.., S, E] · [.., E, T] and [.., S, T] · [.., T, E]."""
    query, key = args[0], args[1]
    return 4.0 * float(query.numel() * key.shape[-2])


def _attention_backward(args: tuple[Any, ...], result: Any) -> float:
    """The scores again, and two products for each of forward's two."""
    query, key = args[1], args[2]
    return 10.0 * float(query.numel() * key.shape[-2])


def _grouped(args: tuple[Any, ...], result: Any) -> float:
    """Each row meets one expert's matrix: [M, K] · [E, K, N]."""
    return 2.0 * float(math.prod(result.shape) * args[0].shape[-1])


def _grouped_backward(args: tuple[Any, ...], result: Any) -> float:
    """Gradients of the rows and of the matrices: [M, K], [E, K, N], and [M, N] coming in."""
    return 4.0 * float(args[0].numel() * args[1].shape[-1])


_FORMULAS: dict[str, Callable[[tuple[Any, ...], Any], float]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
    "grouped_mm_fallback_backward": _grouped_backward,
}
"""Operators that PyTorch's own table of formulas leaves out."""


def _tensors(value: Any) -> list[torch.Tensor]:
    """Each once."""
    leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return list({id(leaf): leaf for leaf in leaves}.values())


def _moved(tensor: torch.Tensor) -> int:
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _empty(node: fx.Node, form: Form) -> torch.Tensor:
    return torch.empty(form.span, dtype=form.dtype)


def _keep_in(kept: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    return keep


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
