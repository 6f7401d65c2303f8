"""Reference implementation of a program: sub-models one after the other, layer by layer.

Forward keeps only the values that cross the cuts; backward computes each sub-model again. This
file shares no code with the engine, whose results tests compare with it bit by bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom.graph.ir import Program, SubModel, require_fit
from atom.graph.segment import bind
from atom.graph.verify import RandomState, random_state, set_random_state


@dataclass(frozen=True)
class Steps:
    """Losses of all micro-batches, and the gradients of their sum by names in the layout."""

    losses: Sequence[torch.Tensor]
    gradients: Mapping[str, torch.Tensor]


def run_layer_major(
    program: Program,
    modules: Sequence[nn.Module],
    parameters: Mapping[str, torch.Tensor],
    batches: Sequence[Mapping[str, torch.Tensor]],
    seeds: Sequence[int],
) -> Steps:
    """Return the losses of several micro-batches and the gradients of their sum.

    In backward each sub-model, from the last to the first, processes all micro-batches before the
    previous sub-model follows. A parameter's gradient is summed in this order: over its sub-models,
    and within a sub-model over the micro-batches. The sum of later sub-models enters the backward
    of the first micro-batch as a root. For a parameter of one sub-model this is the order of plain
    accumulation. For a tied parameter of several sub-models it is not, so the last bits differ:
    (h₁+h₂)+e₁+e₂ here, (h₁+e₁)+(h₂+e₂) in plain accumulation.

    Args:
        program: the program.
        modules: one module per sub-model; parameters are bound to them.
        parameters: name in the layout → tensor; not changed.
        batches: micro-batches.
        seeds: seed of the random numbers of each micro-batch.

    Raises:
        ModelError: a batch does not fit the program.
    """
    for batch in batches:
        require_fit(program, batch)
    for module, sub_model in zip(modules, program.sub_models, strict=True):
        bind(module, sub_model, parameters)
    runs = []
    for batch, seed in zip(batches, seeds, strict=True):
        torch.manual_seed(seed)
        runs.append(_forward(program, modules, batch))
    sums: dict[str, torch.Tensor] = {}
    end = random_state()
    for index in reversed(range(len(modules))):
        for number, run in enumerate(runs):
            set_random_state(run.states[index])
            _backward(modules[index], program.sub_models[index], run, sums, number == 0)
    set_random_state(end)
    return Steps([run.values[program.loss] for run in runs], sums)


@dataclass(frozen=True)
class _Run:
    """Values of one micro-batch, their gradients so far, and the random state of each sub-model."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    states: list[RandomState]


def _forward(
    program: Program, modules: Sequence[nn.Module], batch: Mapping[str, torch.Tensor]
) -> _Run:
    values, states = dict(batch), []
    for module, sub_model in zip(modules, program.sub_models, strict=True):
        states.append(random_state())
        outputs = module(*_inputs(sub_model, values))
        for name, output in zip(sub_model.outputs, outputs, strict=True):
            values[name] = output.detach()
    return _Run(values, {program.loss: torch.ones_like(values[program.loss])}, states)


def _backward(
    module: nn.Module, sub_model: SubModel, run: _Run, sums: dict[str, torch.Tensor], first: bool
) -> None:
    """Run the backward of one sub-model and add gradients to the run and to `sums`.

    In the `first` run, gradients in `sums` enter the backward as roots.
    """
    if not any(name in run.gradients for name in sub_model.outputs):
        return
    inputs = _inputs(sub_model, run.values)
    ends = list(zip(sub_model.outputs, module(*inputs), strict=True))
    leaves = [(n, t) for n, t in zip(sub_model.inputs, inputs, strict=True) if t.requires_grad]
    named = {name: module.get_parameter(path) for path, name in sub_model.parameters}
    trained = [(name, p) for name, p in named.items() if p.requires_grad]
    roots = [(t, run.gradients[name]) for name, t in [*ends, *leaves] if name in run.gradients]
    roots += [(p, sums[name]) for name, p in trained if first and name in sums]
    # backward() would give the `.grad` of a leaf the strides of the leaf, but later sums over these
    # gradients follow the order of memory.
    found = torch.autograd.grad(
        [tensor for tensor, _ in roots],
        [leaf for _, leaf in (*leaves, *trained)],
        [gradient for _, gradient in roots],
        allow_unused=True,
    )
    for (name, _), gradient in zip(leaves, found, strict=False):
        if gradient is not None:
            run.gradients[name] = gradient
    for (name, _), gradient in zip(trained, found[len(leaves) :], strict=True):
        if gradient is not None:
            sums[name] = gradient if first or name not in sums else sums[name] + gradient


def _inputs(sub_model: SubModel, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [
        values[name].detach().requires_grad_(needs_grad)
        for name, needs_grad in zip(sub_model.inputs, sub_model.inputs_need_grad, strict=True)
    ]
