"""Context managers around tracing: they turn what would be silently wrong into a named refusal."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from atom.base.errors import ModelError


@contextmanager
def refuse_custom_backward() -> Iterator[None]:
    """Tracing inlines an `autograd.Function` as its forward and loses its backward: refuse it.

    Raises: ModelError naming the function.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def refuse(function: type, *_: Any, **__: Any) -> Any:
        raise ModelError(
            f"the model uses {function.__module__}.{function.__qualname__}, a custom "
            "autograd.Function; tracing would lose its backward",
            "write it with ordinary operations, or wrap it as a custom operator "
            "(torch.library.custom_op with register_autograd)",
        )

    torch.autograd.Function.apply = classmethod(refuse)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def refuse_python_randomness() -> Iterator[None]:
    """A number drawn by Python while tracing becomes a constant of the program: refuse it.

    Raises: ModelError naming the generator.
    """
    before = _python_random_states()
    yield
    for name, state in _python_random_states().items():
        if name in before and before[name] != state:
            raise ModelError(
                f"the model's forward draws random numbers with {name}; "
                "tracing would freeze them to what was drawn once",
                "draw them with torch, from its default generator",
            )


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Traces as it trains: a model given in evaluation mode is switched, and switched back."""
    modes = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
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


def _fake(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    with mode:
        stand_in = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
        )
        return nn.Parameter(stand_in, requires_grad=parameter.requires_grad)


def _python_random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"the module random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        state = numpy_random.get_state()
        states["numpy.random"] = (state[1].tobytes(), *state[2:])
    return states
