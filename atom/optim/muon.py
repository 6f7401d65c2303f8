"""Muon, momentum with an orthogonalised direction, for hidden matrices; AdamW for other parameters.

For a hidden matrix [rows, columns] (`ParameterSpec.hidden_matrix`), with g the clipped gradient:

    m = m + (1 - µ)·(g - m)                                 µ = 0.95
    u = orthogonal(g + µ·(m - g))                           Nesterov's momentum
    w = w·(1 - rate·decay) - rate·0.2·√max(rows, columns) · u

`orthogonal` brings all singular values near 1, by five Newton–Schulz steps (Jordan 2024). The
factor is Moonlight's (arXiv 2502.16982, eq. 4): it gives updates AdamW's usual root mean square of
0.2, so a rate and a decay that suit AdamW can be kept.

BLAS computes the products. It adds in different orders on different machines, so the steps of two
peers differ in their last bits.
"""

import functools
import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.adamw import AdamW
from atom.optim.momentum import MOMENTUM
from atom.optim.optimizer import Part, StateTensor, StepTerms
from atom.swap.host_store import StateForm

MOMENTUM_DECAY = 0.95
UPDATE_SIZE = 0.2
NEWTON_SCHULZ = 3.4445, -4.7750, 2.0315
NEWTON_SCHULZ_STEPS = 5
MULTIPLIES_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Processor flags (Linux names on x86 and ARM) of instructions that multiply bfloat16 numbers."""
LEAST_NORM = 1e-7
"""Lower bound of the norm by which a matrix is divided."""


class Muon(AdamW):
    """Muon with one momentum per weight of a hidden matrix, and AdamW's moments for other weights.

    `betas` and `epsilon` apply to the parameters that AdamW updates; the weight decay applies to
    all.
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
        clipped, momentum = step.clipped(gradient), part.state[MOMENTUM]
        mean = momentum.float().lerp_(clipped, 1 - MOMENTUM_DECAY)
        if momentum.dtype != mean.dtype:
            momentum.copy_(mean)
        direction = orthogonal(clipped.lerp_(mean, MOMENTUM_DECAY))
        size = UPDATE_SIZE * math.sqrt(max(part.parameter.shape))
        with part.weights() as weights:
            weights.mul_(1 - step.learning_rate * self.weight_decay)
            weights.add_(direction, alpha=-step.learning_rate * size)


def orthogonal(matrix: Tensor, number_format: torch.dtype | None = None) -> Tensor:
    """Return approximately U·Vᵀ of a matrix U·S·Vᵀ.

    Singular values become 0.7 to 1.2. Values below some thousandths of the matrix's norm grow
    485-fold instead, and zeros stay zero.

    Args:
        matrix: [rows, columns]
        number_format: Dtype of the products and of the result; None: `product_format()`.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.to(number_format or product_format())
    upright = x.shape[0] > x.shape[1]
    x = x.T if upright else x  # products along the smaller side are cheaper
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if upright else x


@functools.cache
def product_format() -> torch.dtype:
    """Return bfloat16 if the processor has instructions that multiply it, else float32."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    return torch.float32 if words.isdisjoint(MULTIPLIES_BFLOAT16) else torch.bfloat16
