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
    """Python attributes of a model's modules: numbers, and lengths of lists.

    Tracing runs forward once and freezes what it read. What forward itself changes would have
    been different at the next call, unless it was a cache that settles. (Dictionaries are caches
    more often than not: they are put back, not watched.)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._saved = [(module, _attributes(module)) for module in model.modules()]
        self._contents = [
            (value, value.copy())
            for _, attributes in self._saved
            for value in attributes.values()
            if type(value) in (list, dict, set)
        ]
        self._before = _numbers(model)
        self._after = self._before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks at the state as forward ends: export itself puts attributes back later."""
        self._before = _numbers(self._model)

        def look(*_: Any) -> None:
            self._after = _numbers(self._model)

        hook = self._model.register_forward_hook(look)
        try:
            yield
        finally:
            hook.remove()

    def changed(self) -> str:
        """ "path (before → after)" of what the last watched forward changed, or an empty string."""
        return next(
            (
                f"{'.'.join(filter(None, key))} ({self._before[key]!r} → {value!r})"
                for key, value in self._after.items()
                if key in self._before and self._before[key] != value
            ),
            "",
        )

    def keep(self) -> None:
        """Leaves numbers as the last watched forward left them, for one more."""
        modules = dict(self._model.named_modules())
        for (path, attribute), value in self._after.items():
            if isinstance(vars(modules[path]).get(attribute), int | float):
                setattr(modules[path], attribute, value)

    def restore(self) -> None:
        """Puts everything back; attributes that were added go."""
        for module, attributes in self._saved:
            for key in _attributes(module).keys() - attributes.keys():
                del vars(module)[key]
            vars(module).update(attributes)
        for container, content in self._contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(module).items()
        if key not in _HELD_APART and not key.endswith("_hooks") and "_hooks_" not in key
    }


def _numbers(model: nn.Module) -> dict[tuple[str, str], float]:
    numbers: dict[tuple[str, str], float] = {}
    for path, module in model.named_modules():
        for key, value in _attributes(module).items():
            if isinstance(value, int | float) and key != "training":
                numbers[path, key] = value
            elif type(value) is list:
                numbers[path, f"len({key})"] = len(value)
    return numbers


def _fake(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    with mode:
        stand_in = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
        )
        return nn.Parameter(stand_in, requires_grad=parameter.requires_grad)
