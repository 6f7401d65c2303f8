"""Muon: momentum whose direction is made orthogonal, for hidden matrices; AdamW for the rest.

For a hidden matrix [rows, columns] (`ParameterSpec.hidden_matrix`), with g the clipped gradient:

    m = m + (1 - µ)·(g - m)                                 µ = 0.95
    u = orthogonal(g + µ·(m - g))                           Nesterov's momentum
    w = w·(1 - rate·decay) - rate·0.2·√max(rows, columns) · u

`orthogonal` brings all singular values near 1, by five Newton–Schulz steps (Jordan 2024). The
factor is Moonlight's (arXiv 2502.16982, eq. 4): it gives updates AdamW's usual size, 0.2 in the
root mean square, so that a rate and a decay that suit AdamW can be kept.

Products are left to BLAS, which adds in another order on another machine: the steps of two peers
differ in their last bits.
"""

import functools
import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Part, StateTensor, StepTerms
from atom.swap.state_form import StateForm

MOMENTUM, MOMENTUM_DECAY = "momentum", 0.95
UPDATE_SIZE = 0.2
NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315
NEWTON_SCHULZ_STEPS = 5
MULTIPLIES_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Of a processor's flags, as Linux names them on x86 and ARM."""
LEAST_NORM = 1e-7
"""What a matrix is divided by, at the least."""


class Muon(AdamW):
    """Keeps one momentum for each weight of a hidden matrix, AdamW's two moments for others.

    betas and epsilon are those of AdamW's parameters; the weight decay is everybody's.
    """

    elementwise: ClassVar[bool] = False
    reproducible: ClassVar[bool] = False

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        if not parameter.hidden_matrix:
            return super().state(parameter, form)
        dtype = torch.bfloat16 if form is StateForm.HALF else torch.float32
        return {MOMENTUM: StateTensor(parameter.shape, dtype)}

    def products(self, parameter: ParameterSpec) -> float:
        if not parameter.hidden_matrix:
            return 0.0
        fewer, more = sorted(parameter.shape)
        return NEWTON_SCHULZ_STEPS * (4.0 * fewer**2 * more + 2.0 * fewer**3)

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        if not part.parameter.hidden_matrix:
            super().update(part, gradient, step)
            return
        given, kept = step.clipped(gradient), part.state[MOMENTUM]
        mean = kept.float().lerp_(given, 1 - MOMENTUM_DECAY)
        if kept.dtype != mean.dtype:
            kept.copy_(mean)
        direction = orthogonal(given.lerp_(mean, MOMENTUM_DECAY))
        size = UPDATE_SIZE * math.sqrt(max(part.parameter.shape))
        with part.weights() as weights:
            weights.mul_(1 - step.learning_rate * self.weight_decay)
            weights.add_(direction, alpha=-step.learning_rate * size)


def orthogonal(matrix: Tensor, number_format: torch.dtype | None = None) -> Tensor:
    """About U·Vᵀ of a matrix U·S·Vᵀ: singular values become 0.7 to 1.2, but for those below some
    thousandths of the matrix's norm, which grow 485-fold; zeros stay zero.

    `number_format`: in which products are computed and the result is; None: `product_format()`.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(number_format or product_format())
    upright = x.shape[0] > x.shape[1]
    x = x.T if upright else x  # the products of the smaller side are cheaper
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if upright else x


@functools.cache
def product_format() -> torch.dtype:
    """bfloat16 where the processor has instructions that multiply it, else float32."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    return torch.float32 if words.isdisjoint(MULTIPLIES_BFLOAT16) else torch.bfloat16
