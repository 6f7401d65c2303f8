"""What a model is given in place of its own while it is traced, and gets back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from atom.base.errors import ModelError

_HELD_APART = {"_parameters", "_buffers", "_modules"}


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside have parameters without memory, but real buffers: a table made in a
    constructor (rotary frequencies) is part of the graph, and on `meta` it would have no values.

    Of each parameter memory is asked for once and given back untouched.
    """
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(module, name, param)
        if param is not None and not param.is_meta:
            module._parameters[name] = nn.Parameter(param.detach().to("meta"), param.requires_grad)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


@contextmanager
def mode_of_use(model: nn.Module, training: bool) -> Iterator[None]:
    """Traces as it is used: a model given in the other mode is switched, and switched back. Within
    a model that trains, modules that the user put in evaluation mode stay there.
    """
    modes = [(module, module.training) for module in model.modules()]
    if model.training != training or not training:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def fake_parameters(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Stands in fake CPU tensors for all parameters, so that a model on any device, `meta`
    included, gives the same graph and no weight is ever read. Tied parameters stay tied.
    """
    saved = [
        (module, key, parameter)
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None
    ]
    fakes: dict[int, nn.Parameter] = {}
    try:
        for module, key, parameter in saved:
            if id(parameter) not in fakes:
                fakes[id(parameter)] = _fake(parameter, mode)
            module._parameters[key] = fakes[id(parameter)]
        yield
    finally:
        for module, key, parameter in saved:
            module._parameters[key] = parameter


@contextmanager
def buffers_on_cpu(model: nn.Module) -> Iterator[None]:
    """Gives tracing CPU copies of buffers. Raises: ModelError for a buffer without values."""
    saved = [
        (module, key, buffer)
        for module in model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None
    ]
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            raise ModelError(
                f"the buffer {name} is on the meta device and has no values",
                "build it on the CPU, or compute it in forward",
            )
    try:
        for module, key, buffer in saved:
            module._buffers[key] = buffer.detach().cpu()
        yield
    finally:
        for module, key, buffer in saved:
            module._buffers[key] = buffer


@contextmanager
def plain_context() -> Iterator[None]:
    """Gradients on, autocast off: a caller's own regions are no part of the model."""
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


class PythonState:
    """Attributes of a model's modules, as they were when this was made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saved = [(module, _attributes(module)) for module in model.modules()]
        self._numbers = _numbers(model)

    def changed_number(self) -> str:
        """ "path: before → after" of a number that changed since this was last asked, or ""."""
        before, self._numbers = self._numbers, _numbers(self._model)
        changed = (
            f"{path} ({before[path]!r} → {value!r})"
            for path, value in self._numbers.items()
            if path in before and before[path] != value
        )
        return next(changed, "")

    def restore(self) -> None:
        """Puts attributes back; those that were added go."""
        for module, attributes in self._saved:
            for key in _attributes(module).keys() - attributes.keys():
                del vars(module)[key]
            vars(module).update(attributes)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key not in _HELD_APART}


def _numbers(model: nn.Module) -> dict[str, float]:
    return {
        f"{path}.{key}" if path else key: value
        for path, module in model.named_modules()
        for key, value in _attributes(module).items()
        if isinstance(value, int | float) and key != "training"
    }


def _fake(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    with mode:
        stand_in = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
        )
        return nn.Parameter(stand_in, requires_grad=parameter.requires_grad)
