"""Models of any size without memory for weights: parameters on `meta`, buffers with values.

Building a whole model under `torch.device("meta")` would lose the values of buffers (rotary
frequencies, masks), which in general cannot be recomputed. So only uninitialised tensors go to
`meta` at once (PyTorch's layers create their parameters like that), and any other tensor moves
there when it is registered as a parameter. Large tensors that are filled with numbers, or are
products of others, also go to `meta`: sizes may come from another peer, and no buffer of a real
model is that large. The number of parameters is limited too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from atom.models.source import SourceError

LARGE_BYTES = 64 * 2**20
"""Size in bytes above which a tensor counts as large."""
MAX_PARAMETERS = 2**18
"""Maximum number of parameter tensors, several times as many as in the largest expert models."""
_FILLED = frozenset(
    {
        torch.ones, torch.zeros, torch.full, torch.rand, torch.randn, torch.arange, torch.eye,
        torch.linspace, torch.logspace,
    }
)  # fmt: skip
_WIDEST_ELEMENT_BYTES = 8


class _EmptyOnMeta(TorchFunctionMode):
    """Mode in which uninitialised tensors and large tensors are created on `meta`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None or (func is not torch.empty and func not in _FILLED):
            large = _large_on_meta(func, args, given)
            return func(*args, **given) if large is None else large
        on_meta = func(*args, **{**given, "device": "meta"})
        return on_meta if func is torch.empty or _is_large(on_meta) else func(*args, **given)


def _large_on_meta(
    func: Callable[..., Any], args: tuple[Any, ...], given: Mapping[str, Any]
) -> Tensor | None:
    """Return the result on `meta` if it is large, else None; outer products may be large."""
    tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
    sizes = sorted(tensor.numel() for tensor in tensors if not tensor.is_meta)
    if len(sizes) < 2 or sizes[-1] * sizes[-2] * _WIDEST_ELEMENT_BYTES <= LARGE_BYTES:
        return None
    moved = tree_map_only(Tensor, lambda tensor: tensor.detach().to("meta"), (args, given))
    try:
        result = func(*moved[0], **moved[1])
    except (RuntimeError, NotImplementedError):  # it needs values, so it is no plain product
        return None
    return result if isinstance(result, Tensor) and _is_large(result) else None


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() > LARGE_BYTES


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Put the parameters of modules built within the context on `meta`; tied ones stay tied.

    Raises:
        SourceError: the modules have more than `MAX_PARAMETERS`; the code that builds them gets the
            error.
    """
    register, number = nn.Module.register_parameter, count(1)

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and next(number) > MAX_PARAMETERS:
            raise SourceError(
                f"the model has more than {MAX_PARAMETERS} parameter tensors",
                "check the numbers of layers and experts",
            )
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        with _EmptyOnMeta():
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def drop_values(model: nn.Module, dtype: torch.dtype) -> None:
    """Move every parameter to `meta`, contiguous, floating ones as `dtype`; tied ones stay tied."""
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replaced:
                kind = dtype if parameter.dtype.is_floating_point else parameter.dtype
                value = torch.empty(parameter.shape, device="meta", dtype=kind)
                replaced[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            module._parameters[key] = replaced[id(parameter)]
