"""Seconds per sub-model, measured on the device that will run it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from atom.graph.ir import Program, SubModel
from atom.graph.program import bind, load


@dataclass(frozen=True)
class SubModelSeconds:
    """Medians for one micro-batch. `backward` does not include the recomputed forward."""

    forward_s: float
    backward_s: float


def profile(
    program: Program, device: torch.device | str, repeats: int = 5
) -> tuple[SubModelSeconds, ...]:
    """One entry per sub-model. Sub-models that share a class are measured once; each is dropped
    before the next, so that a model of any size is measured on one small device.

    Compile with the finest cut to measure layer by layer.
    """
    device = torch.device(device)
    measured: dict[str, SubModelSeconds] = {}
    for sub_model, make in zip(program.sub_models, load(program, device), strict=True):
        if sub_model.class_name not in measured:
            measured[sub_model.class_name] = _measure(program, sub_model, make, device, repeats)
    return tuple(measured[sub_model.class_name] for sub_model in program.sub_models)


def _measure(
    program: Program,
    sub_model: SubModel,
    make: Callable[[], nn.Module],
    device: torch.device,
    repeats: int,
) -> SubModelSeconds:
    module = make()
    bind(module, sub_model, _parameters(program, sub_model, device))
    forward, backward = [], []
    for attempt in range(repeats + 1):
        inputs = _inputs(program, sub_model, device)
        start = _now(device)
        outputs = module(*inputs)
        between = _now(device)
        roots = [output for output in outputs if output.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        end = _now(device)
        module.zero_grad(set_to_none=True)
        if attempt > 0:  # the first one also chooses kernels and fills caches
            forward.append(between - start)
            backward.append(end - between)
    return SubModelSeconds(statistics.median(forward), statistics.median(backward))


def _parameters(
    program: Program, sub_model: SubModel, device: torch.device
) -> dict[str, torch.Tensor]:
    return {
        name: torch.full(
            program.layout.by_name[name].shape, 0.01, dtype=program.parameter_dtype, device=device
        )
        for _, name in sub_model.parameters
    }


def _inputs(program: Program, sub_model: SubModel, device: torch.device) -> list[torch.Tensor]:
    """Zeros for integers, which are valid as indices; ones for the rest."""
    inputs = []
    for name in sub_model.inputs:
        spec = program.values[name]
        fill = 1 if spec.dtype.is_floating_point else 0
        value = torch.full(spec.shape, fill, dtype=spec.dtype, device=device)
        inputs.append(value.requires_grad_(spec.needs_grad))
    return inputs


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
