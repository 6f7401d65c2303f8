"""Is a program the model? Compared bit by bit, before anyone trains with it."""

from collections.abc import Mapping

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.graph.stand_ins import mode_of_use
from atom.graph.ir import Program
from atom.graph.program import load
from atom.graph.reference import Step, run_reference

_HINT = "the model does something that tracing cannot see (Python state, a custom kernel)"


def verify_against_eager(
    model: nn.Module, program: Program, batch: Mapping[str, torch.Tensor], seed: int = 0
) -> None:
    """Runs the model and its program once, forward and backward, from the same random state.

    The model needs values (not `meta`), on one device with `batch`; it and the global random
    state are left as they were. Give it a batch other than the one traced with: values frozen
    into the graph then show.

    Raises: ModelError naming the first parameter whose gradient is not bit-equal, or the loss.
    """
    device = next(iter(batch.values())).device
    devices = [device] if device.type == "cuda" else []
    with mode_of_use(model, True), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        expected = _eager(model, batch)
        torch.manual_seed(seed)
        modules = [make() for make in load(program, device)]
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        found = run_reference(program, modules, parameters, batch)
    _compare(program, expected, found)


def _eager(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Step:
    saved = {name: parameter.grad for name, parameter in model.named_parameters()}
    try:
        for parameter in model.parameters():
            parameter.grad = None
        # Clones: one tensor under two names is two values, as in the program.
        loss = model(**{name: value.clone() for name, value in batch.items()})
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = saved[name]
    return Step(loss.detach(), gradients)


def _compare(program: Program, expected: Step, found: Step) -> None:
    if not torch.equal(expected.loss, found.loss):
        raise ModelError(
            f"the sub-models' loss is {found.loss.item()!r}, the model's {expected.loss.item()!r}",
            _HINT,
        )
    for name in dict.fromkeys([*program.layout.by_name, *expected.gradients]):
        wanted, gradient = expected.gradients.get(name), found.gradients.get(name)
        if wanted is None and gradient is None:
            continue
        if wanted is None or gradient is None or not torch.equal(wanted, gradient):
            raise ModelError(
                f"the gradient of {name} differs from the model's{_by(wanted, gradient)}",
                _HINT,
            )


def _by(wanted: torch.Tensor | None, gradient: torch.Tensor | None) -> str:
    if wanted is None or gradient is None:
        return " (one of them has none)"
    difference = (wanted.double() - gradient.double()).abs().max().item()
    return f" by up to {difference:.3g}"
