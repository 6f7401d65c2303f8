"""Is a program the model? Compared bit by bit, before anyone trains with it."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.graph.check.fit import require_fit
from atom.graph.check.reference import Step, run_reference
from atom.graph.check.repetition import first_unrepeated
from atom.graph.ir import Program
from atom.graph.program import load
from atom.graph.tracing.attention_masks import masks_whatever_the_values
from atom.graph.tracing.failures import unrunnable
from atom.graph.tracing.stand_ins import PythonState, mode_of_use, plain_context

_RUNS = 3
"""Of the model, of the model again, of its sub-models."""
_USE_DETERMINISTIC = (
    "use operators that are deterministic, and random numbers from torch's default generator"
)


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

    Raises: ModelError naming the loss, or the first parameter whose gradient is not bit-equal,
    and the operator that does not repeat its results, if that is why.
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
            told(0, _RUNS)
            expected = eager()
            _require_numbers(expected)
            told(1, _RUNS)
            if difference := _difference(program, expected, eager(), "the model run again gives"):
                raise _unrepeatable(difference, eager)
            told(2, _RUNS)
            if difference := _difference(program, expected, split(), "its sub-models give"):
                raise _unlike(difference, split)
            told(_RUNS, _RUNS)
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
    except (Exception, SystemExit) as error:
        raise unrunnable(model, error) from error
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = saved[name]
    return Step(loss.detach(), gradients)


def _require_numbers(step: Step) -> None:
    """NaN equals nothing, not even itself. Raises: ModelError."""
    values = {"the loss": step.loss}
    values |= {f"the gradient of {name}": gradient for name, gradient in step.gradients.items()}
    for name, value in values.items():
        if value.isnan().any():
            raise ModelError(
                f"{name} of the model is nan for the batch that it is checked with",
                "look at the first values of its parameters, and at what its forward divides by "
                "or takes the root of",
            )


def _difference(program: Program, expected: Step, found: Step, gives: str) -> str:
    """What is not bit-equal, in words, or an empty string."""
    if not torch.equal(expected.loss, found.loss):
        return f"{gives} the loss {found.loss.item()!r}, not {expected.loss.item()!r}"
    for name in dict.fromkeys([*program.layout.by_name, *expected.gradients]):
        wanted, gradient = expected.gradients.get(name), found.gradients.get(name)
        if wanted is None and gradient is None:
            continue
        if wanted is None or gradient is None or not torch.equal(wanted, gradient):
            return f"{gives} another gradient of {name}{_by(wanted, gradient)}"
    return ""


def _by(wanted: torch.Tensor | None, gradient: torch.Tensor | None) -> str:
    if wanted is None or gradient is None:
        return " (one of them has none)"
    difference = (wanted.double() - gradient.double()).abs().max().item()
    return f", by up to {difference:.3g}"


def _unrepeatable(difference: str, eager: Callable[[], Step]) -> ModelError:
    call, same_arguments = first_unrepeated(eager)
    if same_arguments:
        return ModelError(f"{difference}: {call} does not repeat its results", _USE_DETERMINISTIC)
    return ModelError(
        f"{difference}: its forward passes {call or 'operators'} other numbers at every call",
        "keep numbers that change out of forward, or hand them in with the batch",
    )


def _unlike(difference: str, split: Callable[[], Step]) -> ModelError:
    """The model repeats itself; do the sub-models?"""
    call, same_arguments = first_unrepeated(split)
    if same_arguments:
        return ModelError(f"{difference}: {call} does not repeat its results", _USE_DETERMINISTIC)
    return ModelError(
        difference, "the model does something that tracing cannot see (Python state, a hook)"
    )
