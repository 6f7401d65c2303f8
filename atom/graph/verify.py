"""Is a program the model? Compared bit by bit, before anyone trains with it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atom.base.errors import ModelError
from atom.graph.attention_masks import masks_whatever_the_values
from atom.graph.failures import unrunnable
from atom.graph.fit import require_fit
from atom.graph.ir import Program
from atom.graph.program import load
from atom.graph.reference import Step, run_reference
from atom.graph.stand_ins import PythonState, mode_of_use, plain_context

_HINT = "the model does something that tracing cannot see (Python state, a custom kernel)"
_PERIOD = 8191
"""Weights of a fingerprint's elements: a prime, so that no usual extent repeats with it."""


def verify_against_eager(
    model: nn.Module,
    program: Program,
    batch: Mapping[str, torch.Tensor],
    seed: int = 0,
    training: bool = True,
) -> None:
    """Runs the model and its program once, forward and backward, from the same random state.

    The model needs values (not `meta`), on one device with `batch`; it and the global random
    state are left as they were. Give it a batch other than the one traced with: values frozen
    into the graph then show. `training` as it was given to `trace`.

    Raises: ModelError naming the loss, or the first parameter whose gradient is not bit-equal,
    and the operator that gives other results every time, if that is why.
    """
    require_fit(program, batch)
    device = next(iter(batch.values())).device
    devices = [device] if device.type == "cuda" else []
    state = PythonState(model)

    def eager() -> Step:
        torch.manual_seed(seed)
        return _eager(model, batch)

    def split() -> Step:
        torch.manual_seed(seed)
        modules = [make() for make in load(program, device)]
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        return run_reference(program, modules, parameters, batch)

    try:
        with mode_of_use(model, training), plain_context(), torch.random.fork_rng(devices):
            difference = _difference(program, eager(), split())
            if difference:
                raise _why(difference, eager, split)
    finally:
        state.restore()


def _eager(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Step:
    saved = {name: parameter.grad for name, parameter in model.named_parameters()}
    try:
        for parameter in model.parameters():
            parameter.grad = None
        # Clones: one tensor under two names is two values, as in the program.
        with masks_whatever_the_values():
            loss = model(**{name: value.clone() for name, value in batch.items()})
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    # The user's forward and operators run here: whatever they raise is about the model.
    except Exception as error:
        raise unrunnable(model, error) from error
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = saved[name]
    return Step(loss.detach(), gradients)


def _difference(program: Program, expected: Step, found: Step) -> str:
    """What is not bit-equal, in words, or an empty string."""
    if not torch.equal(expected.loss, found.loss):
        return (
            f"the sub-models' loss is {found.loss.item()!r}, the model's {expected.loss.item()!r}"
        )
    for name in dict.fromkeys([*program.layout.by_name, *expected.gradients]):
        wanted, gradient = expected.gradients.get(name), found.gradients.get(name)
        if wanted is None and gradient is None:
            continue
        if wanted is None or gradient is None or not torch.equal(wanted, gradient):
            return f"the gradient of {name} differs from the model's{_by(wanted, gradient)}"
    return ""


def _by(wanted: torch.Tensor | None, gradient: torch.Tensor | None) -> str:
    if wanted is None or gradient is None:
        return " (one of them has none)"
    difference = (wanted.double() - gradient.double()).abs().max().item()
    return f" by up to {difference:.3g}"


def _why(difference: str, eager: Callable[[], Step], split: Callable[[], Step]) -> ModelError:
    """Runs each once more: what differs from itself needs no tracing to differ."""
    for run, whose in ((split, "its sub-models"), (eager, "the model")):
        operator = _unrepeatable(run)
        if operator:
            return ModelError(
                f"{difference}: {operator} gives other results when {whose} run again "
                "from the same random state",
                "use operators that are deterministic, and random numbers from torch's default "
                "generator",
            )
    return ModelError(difference, _HINT)


def _unrepeatable(run: Callable[[], Step]) -> str:
    """The first operator whose results differ between two runs, or an empty string."""
    first, second = _Recorder(), _Recorder()
    for recorder in (first, second):
        with recorder:
            run()
    for (operator, results), (_, others) in zip(first.calls, second.calls, strict=False):
        if results != others:
            return operator
    return ""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator that runs, with a fingerprint of its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # Freshly made memory holds anything.
        if "empty" not in func._opname:
            self.calls.append((str(func), tuple(map(_fingerprint, leaves))))
        return result


def _fingerprint(tensor: torch.Tensor) -> int:
    elements = tensor.detach().contiguous().reshape(-1).view(torch.uint8).long()
    places = torch.arange(elements.numel(), device=elements.device) % _PERIOD + 1
    return int((elements * places).sum())
