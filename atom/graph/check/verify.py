"""Is a program the model? Compared bit by bit, before anyone trains with it.

That takes the model's values, its gradients and the program's in memory at once, so a large model
is represented by a smaller one of the same make; where there is none, the check is left out, and
the user is told.
"""

import enum
from collections.abc import Callable, Mapping

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.base.units import format_bytes
from atom.graph.check.reference import Steps, run_layer_major
from atom.graph.ir import Program, require_fit
from atom.graph.program import load
from atom.graph.tracing.attention_masks import masks_whatever_the_values
from atom.graph.tracing.guards import PythonState, mode_of_use, plain_context
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


class Subject(enum.Enum):
    """What is compared with eager."""

    SHRUNK = "shrunk"
    WHOLE = "whole"
    NOTHING = "nothing"


def decide_startup_check(
    whole_bytes: int, shrunk_bytes: int | None, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> tuple[Subject, str]:
    """Which model to verify; and why, for the log: for `NOTHING` a warning that the user must see.
    Sizes are `parameter_bytes` of the model and of a smaller one of the same make (None: there is
    none). The activations of one micro-batch come on top of the limit.

    The whole model is the better witness: what only one of its layers does shows in it alone. It
    is taken where it costs no more than the shrunk one, and where nothing else is to be had.
    """
    if shrunk_bytes is not None and shrunk_bytes < whole_bytes:
        if shrunk_bytes * COPIES <= limit_bytes:
            return Subject.SHRUNK, "a smaller model of the same make is compared"
        return Subject.NOTHING, _too_large("even its smaller make", shrunk_bytes)
    if whole_bytes * COPIES <= limit_bytes:
        return Subject.WHOLE, "the model itself is compared"
    return Subject.NOTHING, _too_large("the model", whole_bytes)


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, tied ones once; a model on `meta` has them too."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _too_large(what: str, size_bytes: int) -> str:
    return (
        f"the split model is NOT compared with the plain one: {what} takes "
        f"{format_bytes(size_bytes * COPIES)} for that; make one with fewer layers and compare it "
        "once (atom.graph.check.verify.verify_against_eager)"
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

    Raises: ModelError naming the loss, or the first parameter whose gradient is not bit-equal.
    """
    require_fit(program, batch)
    device = next(iter(batch.values())).device
    devices = [device] if device.type == "cuda" else []
    state = PythonState(model)

    def eager() -> Steps:
        torch.manual_seed(seed)
        return _eager(model, batch)

    try:
        with mode_of_use(model, training), plain_context(), torch.random.fork_rng(devices):
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
    finally:
        state.restore()


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
