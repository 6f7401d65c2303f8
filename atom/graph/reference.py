"""Sub-models run one after the other, plainly: the meaning of a program, written to be checked.

Forward keeps only what crosses the cuts; backward goes up the chain and computes each sub-model
again. The result is bit-equal to the whole module because

- forward and recompute both run with gradients on, from inputs that need gradients or not as
  decided at trace time: kernels are chosen by that;
- the random state before each sub-model is kept and put back for its recompute;
- a gradient already known (of a value used further down, of a tied parameter) enters the earlier
  sub-model's backward as one more root, so that sums are made in the order of the whole module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom.graph.ir import Program, SubModel
from atom.graph.program import bind


@dataclass(frozen=True)
class Step:
    """One forward and backward. `gradients` is keyed by names in the layout."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


def run_reference(
    program: Program,
    modules: Sequence[nn.Module],
    parameters: Mapping[str, torch.Tensor],
    batch: Mapping[str, torch.Tensor],
) -> Step:
    """Loss and gradients of one micro-batch. `modules` (one per sub-model) are bound to
    `parameters`, which are keyed by names in the layout and not changed.
    """
    for module, sub_model in zip(modules, program.sub_models, strict=True):
        bind(module, sub_model, parameters)
    values, states = dict(batch), []
    for module, sub_model in zip(modules, program.sub_models, strict=True):
        states.append(_random_state())
        outputs = module(*_inputs(sub_model, values))
        for name, output in zip(sub_model.outputs, outputs, strict=True):
            values[name] = output.detach()
    end = _random_state()
    gradients = {program.loss: torch.ones_like(values[program.loss])}
    for module, sub_model, state in reversed(
        list(zip(modules, program.sub_models, states, strict=True))
    ):
        _set_random_state(state)
        _backward(module, sub_model, values, gradients)
    _set_random_state(end)
    names = program.layout.by_name
    return Step(values[program.loss], {n: g for n, g in gradients.items() if n in names})


def _backward(
    module: nn.Module,
    sub_model: SubModel,
    values: Mapping[str, torch.Tensor],
    gradients: dict[str, torch.Tensor],
) -> None:
    """Adds what flows through one sub-model to `gradients` (values and parameters)."""
    if not any(name in gradients for name in sub_model.outputs):
        return
    inputs = _inputs(sub_model, values)
    outputs = module(*inputs)
    leaves = [(n, t) for n, t in zip(sub_model.inputs, inputs, strict=True) if t.requires_grad]
    for path, name in sub_model.parameters:
        if (parameter := module.get_parameter(path)).requires_grad:
            leaves.append((name, parameter))
    ends = list(zip(sub_model.outputs, outputs, strict=True))
    roots = [(name, tensor) for name, tensor in [*ends, *leaves] if name in gradients]
    torch.autograd.backward([t for _, t in roots], [gradients[name] for name, _ in roots])
    for name, leaf in leaves:
        if leaf.grad is not None:
            gradients[name] = leaf.grad


def _inputs(sub_model: SubModel, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [
        values[name].detach().requires_grad_(needs_grad)
        for name, needs_grad in zip(sub_model.inputs, sub_model.inputs_need_grad, strict=True)
    ]


_RandomState = tuple[torch.Tensor, list[torch.Tensor]]


def _random_state() -> _RandomState:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), on_devices


def _set_random_state(state: _RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
