"""AdamW in one pass over memory, by a compiled kernel that gives the same bits on every machine.

For each element, with every operation rounded to float32, f(a, b, c) = a·b + c rounded once, and
the scalars computed in float64 and rounded to float32 before they are used:

    g = gradient · coefficient
    m = f(1 - β₁, g - m, m)                 (β₁ ≤ ½: f((1 - β₁) - 1, g - m, g))
    v = f((1 - β₂)·g, g, v·β₂)
    w = w·(1 - rate·decay) + (-rate/(1 - β₁ᵗ) · m) / (√v / √(1 - β₂ᵗ) + ε)

These are the bits of `torch.optim.AdamW(fused=True)` with AVX2 and AVX-512. The only exception are
the last elements of a tensor that do not fill a whole vector, which torch rounds differently.

Moments in bfloat16 are used as computed, and rounded stochastically when they are stored. The noise
is a function of the seed, the step and the element's number (`noise_of` in the kernel's source).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms
from atom.swap.device_kernels import device_kernels
from atom.swap.host_kernels import (
    GRADIENT_FORMATS,
    MOMENT_BLOCK,
    MOMENT_FORMATS,
    NO_WORKING_COPY,
    SPLIT_MASTER,
    WHOLE_MASTER,
    WORKING_FORMATS,
    AdamWArguments,
    host_kernels,
)
from atom.swap.host_store import HIGH, LOW, MASTER, WORKING, StateForm

MOMENTS = ("exp_avg", "exp_avg_sq")
EXPONENTS = ("exp_avg_exponent", "exp_avg_sq_exponent")
"""State tensors with one exponent for each block of 8-bit moments."""


@dataclass(frozen=True)
class AdamW(Optimizer):
    """AdamW with two moments for each weight: float32, or bfloat16 in the `half` form."""

    elementwise: ClassVar[bool] = True
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Decay of parameters with two or more dimensions; see `decay_all` for biases and norms."""
    seed: int = 0
    """Seed of the noise for stochastic rounding of bfloat16 moments."""
    decay_all: bool = False
    """True if biases and norms decay too."""

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        dtype = torch.bfloat16 if form is StateForm.HALF else torch.float32
        return dict.fromkeys(MOMENTS, StateTensor(parameter.shape, dtype))

    @property
    def steps_on_devices(self) -> bool:
        return type(self) is AdamW  # subclasses have no device kernel

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        decay = self.decay(part.parameter, step)
        arguments = self._arguments(part, gradient, step)
        device = gradient.device
        kernels = host_kernels() if device.type == "cpu" else device_kernels(device)
        kernels.adamw(arguments, part.stop - part.start, part.start, decay)

    def decay(self, parameter: ParameterSpec, step: StepTerms) -> float:
        """Return the factor by which the step shrinks the parameter's weights."""
        decays = self.decay_all or len(parameter.shape) >= 2
        return 1 - step.learning_rate * self.weight_decay if decays else 1.0

    def _arguments(self, part: Part, gradient: Tensor, step: StepTerms) -> AdamWArguments:
        mean, mean_square = (part.state[name] for name in MOMENTS)
        arguments = AdamWArguments.from_buffer_copy(_scalars(self, step))
        arguments.exp_avg, arguments.exp_avg_sq = mean.data_ptr(), mean_square.data_ptr()
        arguments.gradient = gradient.data_ptr()
        arguments.gradient_format = GRADIENT_FORMATS[gradient.dtype]
        arguments.moment_format = MOMENT_FORMATS[mean.dtype]
        if mean.dtype == torch.uint8:
            exponent, exponent_of_square = (part.state[name].data_ptr() for name in EXPONENTS)
            arguments.exp_avg_exponent = exponent
            arguments.exp_avg_sq_exponent = exponent_of_square
        _point_to_weights(arguments, part.stored)
        return arguments


class AdamW8Bit(AdamW):
    """AdamW with both moments in 8 bits, and an 8-bit exponent for each block of each moment.

    `host_kernels.c` defines the number format, docs/optimizer.md describes the effect on training.
    """

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        blocks = -(-math.prod(parameter.shape) // MOMENT_BLOCK)
        return {
            **dict.fromkeys(MOMENTS, StateTensor(parameter.shape, torch.uint8)),
            **dict.fromkeys(EXPONENTS, StateTensor((blocks,), torch.uint8, MOMENT_BLOCK)),
        }


def _point_to_weights(arguments: AdamWArguments, stored: Mapping[str, Tensor]) -> None:
    arguments.master_format, arguments.working_format = WHOLE_MASTER, NO_WORKING_COPY
    if MASTER not in stored:
        arguments.master_format = SPLIT_MASTER
        arguments.master, arguments.working = stored[LOW].data_ptr(), stored[HIGH].data_ptr()
        return
    arguments.master, copy = stored[MASTER].data_ptr(), stored.get(WORKING)
    if copy is not None:
        arguments.working = copy.data_ptr()
        arguments.working_format = WORKING_FORMATS[copy.dtype]


@lru_cache(maxsize=16)
def _scalars(adamw: AdamW, step: StepTerms) -> AdamWArguments:
    """Return the kernel arguments that all parts of a step share; pointers are still empty."""
    beta1, beta2 = adamw.betas
    return AdamWArguments(
        noise_key=noise_key(adamw.seed, step.number),
        coefficient=step.coefficient,
        beta2=beta2,
        one_minus_beta1=1 - beta1,
        one_minus_beta2=1 - beta2,
        root_of_correction2=math.sqrt(1 - power(beta2, step.number)),
        epsilon=adamw.epsilon,
        minus_step_size=-step.learning_rate / (1 - power(beta1, step.number)),
    )


def power(beta: float, step: int) -> float:
    """Return beta to the power of `step`, rounded once.

    The power functions of mathematics libraries differ in the last bit, and replicas must not.
    """
    return float(Context(prec=50).power(Decimal(beta), step))


def noise_key(seed: int, step: int) -> int:
    """Return a 64-bit key for the noise of one step; it differs between steps and between runs."""
    return mix64(mix64(seed) ^ step)


def mix64(number: int) -> int:
    """Return the finaliser of SplitMix64, a permutation of 64-bit numbers.

    Equals `mixed64` of the kernel.
    """
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31
