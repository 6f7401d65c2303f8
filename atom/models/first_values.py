"""Initial values from the model's own initialisation, computed one module at a time.

For each module that owns parameters, memory is allocated for these parameters only, the module is
initialised from a random state that depends on the run's seed and the module's name, and the memory
is released again. So values depend neither on the order of requests nor on the number of threads,
and a model of any size needs memory for its largest module only. Operations of the initialisation
on parameters without memory (on `meta`) have no effect and draw no random numbers.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from atom.models.source import SourceError

Initialise = Callable[[nn.Module, Sequence[nn.Module]], None]
"""Function (module, enclosing modules) that fills the parameters that the module itself owns.

The enclosing modules are ordered from the innermost to the whole model.
"""


class FirstValues:
    """`InitialValue` for a model whose parameters are on `meta`. Not thread-safe."""

    def __init__(self, model: nn.Module, initialise: Initialise, seed: int) -> None:
        self._model = model
        self._initialise = initialise
        self._seed = seed
        self._values: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the initial value of a parameter, a float32 CPU tensor of `shape`.

        If parameters are requested in the model's order, each module is initialised only once.

        Raises:
            SourceError: the initialisation leaves a value unset.
        """
        if name not in self._values:
            self._values = self._initialised(name.rpartition(".")[0])
        value = self._values.pop(name)
        assert value.shape == shape, f"{name}: {tuple(value.shape)} is not {shape}"
        if value.isnan().any():
            raise SourceError(
                f"the model's own initialisation gives {name} no value",
                "set it in the module's reset_parameters (or in transformers' _init_weights)",
            )
        return value

    def _initialised(self, path: str) -> dict[str, Tensor]:
        """Return name → value of the parameters that the module at `path` owns."""
        owner = self._model.get_submodule(path)
        around = [self._model.get_submodule(above) for above in _paths_above(path)]
        saved = dict(owner._parameters)
        try:
            for key, parameter in saved.items():
                if parameter is not None:
                    owner._parameters[key] = nn.Parameter(
                        torch.full(parameter.shape, torch.nan, dtype=torch.float32)
                    )
            with seeded(f"{self._seed}:{path}"), torch.no_grad():
                self._initialise(owner, around)
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
