"""Models of any size without memory for weights: parameters on `meta`, buffers with values.

Building a whole model under `torch.device("meta")` would lose the values of buffers (rotary
frequencies, masks), which in general cannot be recomputed. So only uninitialised tensors go to
`meta` at once (PyTorch's layers create their parameters like that), and any other tensor moves
there when it is registered as a parameter. Sizes may come from another peer: the caller bounds the
memory (`atom.base.usable_memory.bounded_memory`), and the number of parameters is limited here.

Initial values come from the model's own initialisation, one module at a time (`first_values`). For
each module that owns parameters, memory is allocated for these parameters only, the module is
initialised from a random state that depends on the run's seed and the module's name, and the memory
is released again. So values depend neither on the order of requests nor on the number of threads,
and a model of any size needs memory for its largest module only. Operations of the initialisation
on parameters without memory have no effect and draw no random numbers.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from atom.base.errors import ConfigError
from atom.models.source import InitialValue, replace_parameters

MAX_PARAMETERS = 2**18
"""Maximum number of parameter tensors, several times as many as in the largest expert models."""
_FEW = 64
"""Number of elements up to which a parameter's value of its constructor is kept."""


class _EmptyOnMeta(TorchFunctionMode):
    """Mode in which uninitialised tensors are created on `meta`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty and given.get("device") is None:
            given["device"] = "meta"
        return func(*args, **given)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Put the parameters of modules built within the context on `meta`; tied ones stay tied.

    Raises:
        ConfigError: the modules have more than `MAX_PARAMETERS`; the code that builds them gets the
            error.
    """
    register, number = nn.Module.register_parameter, count(1)

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and next(number) > MAX_PARAMETERS:
            raise ConfigError(
                f"the model has more than {MAX_PARAMETERS} parameter tensors",
                "check the numbers of layers and experts",
            )
        if parameter is not None and not parameter.is_meta:
            made = parameter.detach()
            parameter = nn.Parameter(made.to("meta"), parameter.requires_grad)
            if made.numel() <= _FEW:
                parameter.made = made  # type: ignore[attr-defined]
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        with _EmptyOnMeta():
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def drop_values(model: nn.Module, dtype: torch.dtype) -> None:
    """Move every parameter to `meta`, contiguous, floating ones as `dtype`; tied ones stay tied."""

    def empty(name: str, parameter: nn.Parameter) -> Tensor:
        kind = dtype if parameter.dtype.is_floating_point else parameter.dtype
        return torch.empty(parameter.shape, device="meta", dtype=kind)

    replace_parameters(model, empty)


Initialise = Callable[[nn.Module, Sequence[nn.Module]], None]
"""Function (module, enclosing modules) that fills the parameters that the module itself owns.

The enclosing modules are ordered from the innermost to the whole model.
"""


def first_values(model: nn.Module, initialise: Initialise, seed: int) -> InitialValue:
    """Return the function that computes initial values of a model on `meta`. Not thread-safe.

    If parameters are requested in the model's order, each module is initialised only once. The
    function raises ConfigError if the initialisation leaves a value unset.
    """
    values = dict[str, Tensor]()

    def value_of(name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in values:
            values.clear()
            values.update(_initialised(model, name.rpartition(".")[0], initialise, seed))
        value = values.pop(name)
        assert value.shape == shape, f"{name}: {tuple(value.shape)} is not {shape}"
        if value.isnan().any():
            raise ConfigError(
                f"the model's own initialisation gives {name} no value",
                "set it in the module's reset_parameters (or in transformers' _init_weights)",
            )
        return value

    return value_of


def _initialised(
    model: nn.Module, path: str, initialise: Initialise, seed: int
) -> dict[str, Tensor]:
    """Return name → value of the parameters that the module at `path` owns."""
    owner = model.get_submodule(path)
    around = [model.get_submodule(above) for above in _paths_above(path)]
    saved = dict(owner._parameters)
    try:
        for key, parameter in saved.items():
            if parameter is not None:
                made = getattr(parameter, "made", torch.tensor(torch.nan))
                owner._parameters[key] = nn.Parameter(made.float().expand_as(parameter).clone())
        with seeded(f"{seed}:{path}"), torch.no_grad():
            initialise(owner, around)
        return {
            f"{path}.{key}" if path else key: value.detach()
            for key, value in owner._parameters.items()
            if value is not None
        }
    finally:
        owner._parameters.update(saved)


def reset(owner: nn.Module, around: Sequence[nn.Module]) -> None:
    """Initialise a module by its own `reset_parameters`, if it has one (an `Initialise`).

    Args:
        owner: the module, which keeps its present values if it has no such method.
        around: the enclosing modules, which are not needed.
    """
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(owner, name, None)
        if callable(method):
            method()
            return


@contextmanager
def seeded(key: str) -> Iterator[None]:
    """Seed PyTorch's and Python's random numbers from `key` within the context, on one thread.

    A single thread makes values reproducible: elementwise kernels round differently at the end of
    each thread's share.
    """
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1
    state, threads = random.getstate(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            random.seed(number)
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(state)


def _paths_above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path
