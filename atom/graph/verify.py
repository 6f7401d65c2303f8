"""Is a program the model? Compared bit by bit, before anyone trains with it.

That takes the model's values, its gradients and the program's in memory at once, so a large model
is represented by a smaller one of the same make; where there is none, the check is left out, and
the user is told.

`run_layer_major` is the meaning of a program, written to be checked. Forward keeps only what
crosses the cuts; backward goes up the chain and computes each sub-model again. That is bit-equal
to the whole module because

- forward and recompute both run with gradients on, from inputs that need gradients or not as
  decided at trace time: kernels are chosen by that;
- the random state before each sub-model is kept and put back for its recompute;
- a gradient already known (of a value used further down, of a tied parameter) enters the earlier
  sub-model's backward as one more root, so that sums are made in the order of the whole module;
- values and gradients cross with their strides: sums are made in the order of memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.base.units import format_bytes
from atom.graph.ir import Program, SubModel, require_fit
from atom.graph.program import bind, load
from atom.graph.tracing.guards import (
    masks_whatever_the_values,
    mode_of_use,
    plain_context,
    python_state_restored,
)
from atom.graph.tracing.refusals import unrunnable

_RUNS = 3
"""Of the model, of the model again, of its sub-models."""

_REPEAT = (
    "use operators that repeat their results and random numbers from torch's default generator, "
    "and keep numbers that change at every call out of forward"
)
_UNSEEN = "the model does something that tracing cannot see (Python state, a hook), or not repeat"

COPIES = 4
"""Parameters, eager gradients, the program's gradients, and one more while a sum is made."""

DEFAULT_LIMIT_BYTES = 4 * 2**30


SHRUNK, WHOLE, NOTHING = "shrunk", "whole", ""
"""What is compared with eager."""


def decide_startup_check(
    whole_bytes: int, shrunk_bytes: int | None, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> tuple[str, str]:
    """Which model to verify; and why, for the log: for `NOTHING` a warning that the user must see.
    Sizes are `parameter_bytes` of the model and of a smaller one of the same make (None: there is
    none). The activations of one micro-batch come on top of the limit.

    The whole model is the better witness: what only one of its layers does shows in it alone. It
    is taken where it costs no more than the shrunk one, and where nothing else is to be had.
    """
    if shrunk_bytes is not None and shrunk_bytes < whole_bytes:
        if shrunk_bytes * COPIES <= limit_bytes:
            return SHRUNK, "a smaller model of the same make is compared"
        return NOTHING, _too_large("even its smaller make", shrunk_bytes)
    if whole_bytes * COPIES <= limit_bytes:
        return WHOLE, "the model itself is compared"
    return NOTHING, _too_large("the model", whole_bytes)


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, tied ones once; a model on `meta` has them too."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _too_large(what: str, size_bytes: int) -> str:
    return (
        f"the split model is NOT compared with the plain one: {what} takes "
        f"{format_bytes(size_bytes * COPIES)} for that; make one with fewer layers and compare it "
        "once (atom.graph.verify.verify_against_eager)"
    )


@dataclass(frozen=True)
class Steps:
    """Micro-batches: a loss each, and the gradients of their sum by names in the layout."""

    losses: Sequence[torch.Tensor]
    gradients: Mapping[str, torch.Tensor]


def verify_against_eager(
    model: nn.Module,
    program: Program,
    batch: Mapping[str, torch.Tensor],
    seed: int = 0,
    training: bool = True,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Runs the model and its program, forward and backward, from the same random state; the model
    twice, for a model that does not repeat itself equals no program for long.

    The model needs values (not `meta`), on one device with `batch`; it and the global random
    state are left as they were. Give it a batch other than the one traced with: values frozen
    into the graph then show. `training` as it was given to `trace`. `told`: how many of the runs
    have ended, and how many there are.

    Raises: ModelError naming the loss, or the first parameter whose gradient is not bit-equal.
    """
    require_fit(program, batch)
    device = next(iter(batch.values())).device
    devices = [device] if device.type == "cuda" else []

    def eager() -> Steps:
        torch.manual_seed(seed)
        return _eager(model, batch)

    with (
        python_state_restored(model),
        mode_of_use(model, training),
        plain_context(),
        torch.random.fork_rng(devices),
    ):
        told(0, _RUNS)
        expected = eager()
        _require_numbers(expected)
        told(1, _RUNS)
        if difference := _difference(program, expected, eager()):
            raise ModelError(f"the model run again gives {difference}", _REPEAT)
        told(2, _RUNS)
        modules = [make() for make in load(program, device)]
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        split = run_layer_major(program, modules, parameters, [batch], [seed])
        if difference := _difference(program, expected, split):
            raise ModelError(f"its sub-models give {difference}", _UNSEEN)
        told(_RUNS, _RUNS)


def _eager(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Steps:
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
    except (Exception, SystemExit) as error:
        raise unrunnable(model, error) from error
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = saved[name]
    return Steps([loss.detach()], gradients)


def _require_numbers(step: Steps) -> None:
    """NaN equals nothing, not even itself. Raises: ModelError."""
    values = {"the loss": step.losses[0]}
    values |= {f"the gradient of {name}": gradient for name, gradient in step.gradients.items()}
    for name, value in values.items():
        if value.isnan().any():
            raise ModelError(
                f"{name} of the model is nan for the batch that it is checked with",
                "look at the first values of its parameters, and at what its forward divides by "
                "or takes the root of",
            )


def _difference(program: Program, expected: Steps, found: Steps) -> str:
    """What is not bit-equal, in words, or an empty string."""
    (wanted,), (loss,) = expected.losses, found.losses
    if not torch.equal(wanted, loss):
        return f"the loss {loss.item()!r}, not {wanted.item()!r}"
    for name in dict.fromkeys([*program.layout.by_name, *expected.gradients]):
        right, gradient = expected.gradients.get(name), found.gradients.get(name)
        if right is None and gradient is None:
            continue
        if right is None or gradient is None or not torch.equal(right, gradient):
            return f"another gradient of {name}{_by(right, gradient)}"
    return ""


def _by(wanted: torch.Tensor | None, gradient: torch.Tensor | None) -> str:
    if wanted is None or gradient is None:
        return " (one of them has none)"
    difference = (wanted.double() - gradient.double()).abs().max().item()
    return f", by up to {difference:.3g}"


def run_layer_major(
    program: Program,
    modules: Sequence[nn.Module],
    parameters: Mapping[str, torch.Tensor],
    batches: Sequence[Mapping[str, torch.Tensor]],
    seeds: Sequence[int],
) -> Steps:
    """Losses of several micro-batches, and the gradients of their sum, in the order of a pass.
    `modules` (one per sub-model) are bound to `parameters`, which are keyed by names in the layout
    and not changed. Every micro-batch draws the random numbers of its seed.

    Each sub-model, last to first, takes all micro-batches in turn before the next. A parameter's
    gradient is the sum over its sub-models in that order, within one over the micro-batches; what
    later sub-models summed for it enters the first micro-batch's backward as a root. With a
    parameter used in one sub-model, that is the order of plain accumulation. For one used in
    several (tied) it is not: (h₁+h₂)+e₁+e₂ here, (h₁+e₁)+(h₂+e₂) there; other last bits.

    Raises: ModelError for a batch that does not fit.
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
    end = _random_state()
    for index in reversed(range(len(modules))):
        for number, run in enumerate(runs):
            _set_random_state(run.states[index])
            _backward(modules[index], program.sub_models[index], run, sums, number == 0)
    _set_random_state(end)
    return Steps([run.values[program.loss] for run in runs], sums)


_RandomState = tuple[torch.Tensor, list[torch.Tensor]]


@dataclass(frozen=True)
class _Run:
    """One micro-batch's values, their gradients so far, and the random state per sub-model."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    states: list[_RandomState]


def _forward(
    program: Program, modules: Sequence[nn.Module], batch: Mapping[str, torch.Tensor]
) -> _Run:
    values, states = dict(batch), []
    for module, sub_model in zip(modules, program.sub_models, strict=True):
        states.append(_random_state())
        outputs = module(*_inputs(sub_model, values))
        for name, output in zip(sub_model.outputs, outputs, strict=True):
            values[name] = output.detach()
    return _Run(values, {program.loss: torch.ones_like(values[program.loss])}, states)


def _backward(
    module: nn.Module, sub_model: SubModel, run: _Run, sums: dict[str, torch.Tensor], first: bool
) -> None:
    """Adds what flows through one sub-model to the run's gradients, and the parameters' to `sums`.
    In the `first` run what is there already enters as roots."""
    if not any(name in run.gradients for name in sub_model.outputs):
        return
    inputs = _inputs(sub_model, run.values)
    ends = list(zip(sub_model.outputs, module(*inputs), strict=True))
    leaves = [(n, t) for n, t in zip(sub_model.inputs, inputs, strict=True) if t.requires_grad]
    named = {name: module.get_parameter(path) for path, name in sub_model.parameters}
    trained = [(name, p) for name, p in named.items() if p.requires_grad]
    roots = [(t, run.gradients[name]) for name, t in [*ends, *leaves] if name in run.gradients]
    roots += [(p, sums[name]) for name, p in trained if first and name in sums]
    # Not backward(): a leaf's `.grad` takes the leaf's strides, and sums over what flows on are
    # made in the order of its memory.
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


def _random_state() -> _RandomState:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), on_devices


def _set_random_state(state: _RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
