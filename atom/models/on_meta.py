"""Models of any size without memory for weights: parameters on `meta`, buffers with values.

Building everything under `torch.device("meta")` would lose the values of buffers (rotary
frequencies, masks), which no initialisation brings back in general. So only memory that is asked
for uninitialised goes to `meta` (all of PyTorch's layers ask for their parameters like that), and
whatever else becomes a parameter follows when it is registered. Tensors that are made full of
numbers go there as well when they are large: sizes may be a stranger's, and no buffer of a model
is that large.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

LARGE_BYTES = 64 * 2**20
_FILLED = frozenset(
    {torch.ones, torch.zeros, torch.full, torch.rand, torch.randn, torch.arange, torch.eye}
)


class _EmptyOnMeta(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("device") is not None or (func is not torch.empty and func not in _FILLED):
            return func(*args, **given)
        on_meta = func(*args, **{**given, "device": "meta"})
        if func is torch.empty or on_meta.numel() * on_meta.element_size() > LARGE_BYTES:
            return on_meta
        return func(*args, **given)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside keep no parameter in memory. Tied parameters stay tied."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
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
    """Puts every parameter on `meta`, floating ones as `dtype`; tied ones stay tied."""
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replaced:
                kind = dtype if parameter.dtype.is_floating_point else parameter.dtype
                value = torch.empty_like(parameter, device="meta", dtype=kind)
                replaced[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            module._parameters[key] = replaced[id(parameter)]
