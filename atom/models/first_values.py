"""First values by the model's own initialisation, one module at a time.

Each module that owns parameters gets memory for them alone, is initialised from a random state
that depends on the run's seed and the module's name, and is emptied again. So values depend
neither on the order in which they are asked for nor on the count of threads, and a model of any
size needs memory for its largest module only. What the initialisation does to parameters that have
no memory at that moment does nothing, and draws nothing.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from atom.models.source import SourceError

Initialise = Callable[[nn.Module, Sequence[nn.Module]], None]
"""Gives a module's own parameters their values; also told: the modules around it, inside out."""


class FirstValues:
    """`InitialValue` of a model whose parameters are on `meta`. Not thread-safe."""

    def __init__(self, model: nn.Module, initialise: Initialise, seed: int) -> None:
        self._model = model
        self._initialise = initialise
        self._seed = seed
        self._made: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Asked in order, each module is initialised once. Raises: SourceError."""
        if name not in self._made:
            self._made = self._make(name.rpartition(".")[0])
        value = self._made.pop(name)
        assert value.shape == shape, f"{name}: {tuple(value.shape)} is not {shape}"
        if value.isnan().any():
            raise SourceError(
                f"the model's own initialisation gives {name} no value",
                "set it in the module's reset_parameters (or transformers' _init_weights)",
            )
        return value

    def _make(self, path: str) -> dict[str, Tensor]:
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
    """As the module's constructor does: its `reset_parameters`. Other parameters get no value."""
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(owner, name, None)
        if callable(method):
            method()
            return


@contextmanager
def seeded(key: str) -> Iterator[None]:
    """PyTorch's and Python's random numbers follow from `key` inside, on one thread: elementwise
    kernels round the ends of their shares differently, and threads decide where those are.
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
