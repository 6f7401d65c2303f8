"""Bit-by-bit comparison of a program with its model, before it is used for training.

The comparison holds the model's parameters, its gradients and the program's gradients in memory at
once. Therefore callers compare a smaller model of the same architecture instead of a large one. If
there is none, they skip the comparison and warn the user.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from atom.base.errors import ModelError
from atom.base.units import format_bytes
from atom.graph.ir import ParameterLayout, Program, require_fit
from atom.graph.program import load
from atom.graph.segment import bind, compute, push_back
from atom.graph.tracing import guards
from atom.graph.tracing.refusals import unrunnable

_RUNS = 2
"""Number of runs: the model, and its sub-models."""

_UNSEEN = (
    "remove what tracing cannot see: Python state, hooks, and operators that do not repeat their "
    "results or draw random numbers from elsewhere than torch's default generator"
)

COPIES = 4
"""Parameter-sized copies in memory: the parameters, the eager gradients, the program's gradients,
and one more during additions."""

DEFAULT_LIMIT_BYTES = 4 * 2**30
"""Memory that a comparison may take by default, without activations."""


def too_large_to_compare(size_bytes: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> str:
    """Return a warning for the user if a model is too large to compare, else an empty string.

    Args:
        size_bytes: bytes of the model's parameters.
        limit_bytes: memory for the comparison. The activations of one micro-batch come on top.
    """
    if size_bytes * COPIES <= limit_bytes:
        return ""
    return (
        "the split model is NOT compared with the plain one: that takes "
        f"{format_bytes(size_bytes * COPIES)}; make one with fewer layers and compare it once "
        "(atom.graph.verify.verify_against_eager)"
    )


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters, also on `meta`. Tied parameters count once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


_Step = Mapping[str, torch.Tensor]
"""Name in messages → result for a micro-batch: the loss, or the gradient of a parameter."""


def verify_against_eager(
    model: nn.Module,
    program: Program,
    batch: Mapping[str, torch.Tensor],
    training: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run a model and its program, forward and backward, and compare all bits.

    Both runs start from the same random state. The model and the global random state are restored
    afterwards. A model that does not repeat its own results is refused too.

    Args:
        model: the model with values (not on `meta`), on the device of `batch`.
        program: the program compiled from `model`.
        batch: a batch other than the example that was traced, in order to detect values that
            tracing made constants.
        training: the value that was passed to `trace`.
        on_progress: callback for progress with the arguments (finished runs, all runs).

    Raises:
        ModelError: the loss or a gradient differs in any bit or is NaN; the message names the
            first one.
    """
    require_fit(program, batch)
    device = next(iter(batch.values())).device
    devices = [device] if device.type == "cuda" else []

    with (
        guards.python_state_restored(model),
        guards.temporary_mode(model, training),
        guards.plain_context(),
        torch.random.fork_rng(devices),
    ):
        on_progress(0, _RUNS)
        expected = _eager(model, batch)
        _require_numbers(expected)
        on_progress(1, _RUNS)
        split = _split(model, program, batch, device)
        if difference := _difference(expected, split):
            raise ModelError(f"its sub-models give another value for {difference}", _UNSEEN)
        on_progress(_RUNS, _RUNS)


def _eager(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> _Step:
    saved = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.manual_seed(0)
    try:
        for parameter in model.parameters():
            parameter.grad = None
        # Clone, so that one tensor under two names is two values, as in the program.
        with guards.masks_always_applied():
            loss = model(**{name: value.clone() for name, value in batch.items()})
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    # The user's forward and operators run here: any exception of them is about the model.
    except (Exception, SystemExit) as error:
        raise unrunnable(model, error) from error
    finally:
        for name, parameter in model.named_parameters():
            parameter.grad = saved[name]
    return _step(loss.detach(), gradients)


def _split(
    model: nn.Module, program: Program, batch: Mapping[str, torch.Tensor], device: torch.device
) -> _Step:
    """Run the program sub-model by sub-model; each is computed again before its backward."""
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
        full = program.layout.whole_name(name)
        whole.setdefault(full, total if full == name else total.new_zeros(parameters[full].shape))
        _rows(program.layout, whole, name).copy_(total)
    return _step(values[program.loss], whole)


def _rows(layout: ParameterLayout, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the tensor called `name`, or the rows of a tensor if `name` is a `part_name`."""
    if name in tensors:
        return tensors[name]
    whole, spec = layout.whole_name(name), layout.by_name[name]
    first = spec.offset - layout.by_name[whole].offset
    return tensors[whole].reshape(-1)[first : first + spec.numel].view(spec.shape)


def _step(loss: torch.Tensor, gradients: Mapping[str, torch.Tensor]) -> _Step:
    return {"the loss": loss} | {f"the gradient of {n}": g for n, g in gradients.items()}


def _require_numbers(step: _Step) -> None:
    """Raise an error for NaN, which equals nothing and would be reported as a difference.

    Raises:
        ModelError: names the first result that contains NaN.
    """
    for name, value in step.items():
        if value.isnan().any():
            raise ModelError(
                f"{name} of the model is nan for the batch of the check",
                "check the first values of its parameters, and divisions and roots in its forward",
            )


def _difference(expected: _Step, found: _Step) -> str:
    """Return the name of the first result that is not bit-equal, or an empty string."""
    for name in dict.fromkeys([*expected, *found]):
        wanted, value = expected.get(name), found.get(name)
        if wanted is None or value is None or not torch.equal(wanted, value):
            return name
    return ""


RandomState = tuple[torch.Tensor, list[torch.Tensor]]
"""States of the default generators of the CPU and of all GPUs."""


def random_state() -> RandomState:
    """Return the states of the default random generators of the CPU and of all GPUs."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), on_devices


def set_random_state(state: RandomState) -> None:
    """Set the random generators of the CPU and of all GPUs to states from `random_state`."""
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
