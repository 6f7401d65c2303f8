"""Layers through `torch.compile`: fewer kernels and less memory traffic, other last bits.

One compilation serves all layers of a class: their parameters are inputs of what is compiled. It
happens when a class is first run, forward and backward together, and takes seconds to minutes.

A peer may do this on its own account. Its gradients then differ from those of the plain sub-models
as rounding does, and replicas stay identical: they step on averaged gradients only, and whatever a
peer computed is averaged as the same bytes everywhere.

Random numbers are the plain sub-models' own, so a recompute replays them, whichever way it runs.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from atom.swap.device_slots import Factory

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Between compiled and plain results, relative to their norm: a wrong kernel is far off."""

_INDUCTOR: dict[str, str | int | bool | Callable[..., Any]] = {
    "fallback_random": True,
    # In this process: no pool of workers that would have to be ended with it.
    "compile_threads": 1,
}

Told = Callable[[str, str], None]
"""Takes a class that runs uncompiled from now on, and why."""


@dataclass(frozen=True)
class Compilation:
    """How to compile; `told` once for each class that could not be, on the engine's thread."""

    told: Told
    backend: str = "inductor"

    def of(self, factories: Sequence[Factory]) -> list[Factory]:
        """Factories of the same modules, which run compiled where gradients are wanted."""
        kinds: dict[str, _Kind] = {}
        return [partial(self._made, make, kinds) for make in factories]

    def _made(self, make: Factory, kinds: "dict[str, _Kind]") -> nn.Module:
        """A sub-model of several layers calls theirs, which are what is compiled."""
        module = make()
        for layer in module.modules():
            if not any(layer.children()):
                name = type(layer).__name__
                layer.forward = _Forward(layer, kinds.setdefault(name, _Kind(name, self)))
        return module


@dataclass
class _Kind:
    """What is known of one class."""

    name: str
    compilation: Compilation
    runs_plainly: bool = False
    compared: bool = False

    def give_up(self, why: str) -> None:
        self.runs_plainly = True
        self.compilation.told(self.name, why)


Outputs = tuple[Tensor, ...]


class _Forward:
    """A module's forward: compiled, or as it was where that cannot be."""

    def __init__(self, module: nn.Module, kind: _Kind) -> None:
        self._plain: Callable[..., Outputs] = module.forward
        self._kind = kind

    def __call__(self, *inputs: Tensor) -> Outputs:
        if self._kind.runs_plainly or not torch.is_grad_enabled():
            return self._plain(*inputs)
        from torch._dynamo.exc import TorchDynamoException
        from torch._functorch import config

        # Else the backward is compiled, and fails, in the middle of a backward.
        with config.patch(force_non_lazy_backward_lowering=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's compiler, about its own parts
            try:
                if self._kind.compared or self._compares(inputs):
                    return self._compiled(*inputs)
            except TorchDynamoException as error:
                self._kind.give_up(_in_one_line(error))
        return self._plain(*inputs)

    @cached_property
    def _compiled(self) -> Callable[..., Outputs]:
        backend = self._kind.compilation.backend
        options = _INDUCTOR if backend == "inductor" else None
        return torch.compile(
            self._plain, backend=backend, fullgraph=True, dynamic=False, options=options
        )

    def _compares(self, inputs: Sequence[Tensor]) -> bool:
        """Whether both ways give about the same, from the same random state, which is left as it
        was. Numbers that are not finite say nothing: the next call is compared again.
        """
        devices = {tensor.device for tensor in inputs if tensor.device.type == "cuda"}
        with torch.random.fork_rng(devices), torch.no_grad():
            expected = self._plain(*inputs)
        with torch.random.fork_rng(devices):
            found = self._compiled(*inputs)
        if not all(bool(value.isfinite().all()) for value in expected):
            return True
        worst = max(map(_difference, found, expected), default=0.0)
        if worst <= 1.0:
            self._kind.compared = True
            return True
        self._kind.give_up(f"its results differ by {worst:.1f} times what rounding explains")
        return False


def _difference(found: Tensor, expected: Tensor) -> float:
    """In units of what is tolerated."""
    tolerance = TOLERANCES.get(expected.dtype, 0.0)
    error = (found.detach().double() - expected.double()).norm().item()
    if error == 0.0:
        return 0.0
    allowed = tolerance * expected.double().norm().item()
    return error / allowed if allowed else float("inf")


def _in_one_line(error: Exception) -> str:
    """Torch says who failed, then why, then what to try."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return " ".join(filter(None, lines[:2]))
