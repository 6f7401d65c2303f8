"""Is a program the model? Compared bit by bit, before anyone trains with it.

That takes the model's values, its gradients and the program's in memory at once, so a large model
is represented by a smaller one of the same make; where there is none, the check is left out, and
the user is told.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.base.units import format_bytes
from atom.graph.ir import ParameterLayout, Program, require_fit
from atom.graph.program import load
from atom.graph.segment import bind, compute, push_back
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


def too_large_to_compare(size_bytes: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> str:
    """For a model with so many bytes of parameters: a warning that the user must see, or nothing.
    The activations of one micro-batch come on top of the limit."""
    if size_bytes * COPIES <= limit_bytes:
        return ""
    return (
        "the split model is NOT compared with the plain one: that takes "
        f"{format_bytes(size_bytes * COPIES)}; make one with fewer layers and compare it once "
        "(atom.graph.verify.verify_against_eager)"
    )


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, tied ones once; a model on `meta` has them too."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


_Step = Mapping[str, torch.Tensor]
"""What a micro-batch gives, by its name in messages: the loss, and the gradient of each parameter.
"""


def verify_against_eager(
    model: nn.Module,
    program: Program,
    batch: Mapping[str, torch.Tensor],
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

    with (
        python_state_restored(model),
        mode_of_use(model, training),
        plain_context(),
        torch.random.fork_rng(devices),
    ):
        told(0, _RUNS)
        expected = _eager(model, batch)
        _require_numbers(expected)
        told(1, _RUNS)
        if difference := _difference(expected, _eager(model, batch)):
            raise ModelError(f"the model run again gives {difference}", _REPEAT)
        told(2, _RUNS)
        split = _split(model, program, batch, device)
        if difference := _difference(expected, split):
            raise ModelError(f"its sub-models give {difference}", _UNSEEN)
        told(_RUNS, _RUNS)


def _eager(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> _Step:
    saved = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
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
    return _step(loss.detach(), gradients)


def _split(
    model: nn.Module, program: Program, batch: Mapping[str, torch.Tensor], device: torch.device
) -> _Step:
    """Sub-model by sub-model, each computed again when the backward reaches it."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    values, sums = dict(batch), dict[str, torch.Tensor]()
    torch.manual_seed(0)
    done = []
    for make, sub_model in zip(load(program, device), program.sub_models, strict=True):
        module = make()
        rows = {n: _rows(program.layout, parameters, n) for _, n in sub_model.parameters}
        bind(module, sub_model, rows)
        done.append((module, sub_model, random_state()))
        outputs = compute(module, sub_model, values).outputs
        values |= {name: output.detach() for name, output in outputs.items()}
    gradients = {program.loss: torch.ones_like(values[program.loss])}
    for module, sub_model, state in reversed(done):
        set_random_state(state)
        named = {name: module.get_parameter(path) for path, name in sub_model.parameters}
        carried = [(p, sums[name]) for name, p in named.items() if name in sums]
        push_back(compute(module, sub_model, values), gradients, carried)
        sums |= {name: p.grad for name, p in named.items() if p.grad is not None}
    whole = dict[str, torch.Tensor]()
    for name, total in sums.items():
        of = program.layout.whole_name(name)
        whole.setdefault(of, total if of == name else total.new_zeros(parameters[of].shape))
        _rows(program.layout, whole, name).copy_(total)
    return _step(values[program.loss], whole)


def _rows(layout: ParameterLayout, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Of one of them: all, or the rows that `name` says."""
    if name in tensors:
        return tensors[name]
    whole, spec = layout.whole_name(name), layout.by_name[name]
    first = spec.offset - layout.by_name[whole].offset
    return tensors[whole].reshape(-1)[first : first + spec.numel].view(spec.shape)


def _step(loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> _Step:
    return {"the loss": loss} | {f"the gradient of {n}": g for n, g in gradients.items()}


def _require_numbers(step: _Step) -> None:
    """NaN equals nothing, not even itself. Raises: ModelError."""
    for name, value in step.items():
        if value.isnan().any():
            raise ModelError(
                f"{name} of the model is nan for the batch that it is checked with",
                "look at the first values of its parameters, and at what its forward divides by "
                "or takes the root of",
            )


def _difference(expected: _Step, found: _Step) -> str:
    """What is not bit-equal, in words, or an empty string."""
    for name in dict.fromkeys([*expected, *found]):
        wanted, value = expected.get(name), found.get(name)
        if wanted is None or value is None or not torch.equal(wanted, value):
            return f"{name} another value"
    return ""


RandomState = tuple[torch.Tensor, list[torch.Tensor]]


def random_state() -> RandomState:
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), on_devices


def set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
