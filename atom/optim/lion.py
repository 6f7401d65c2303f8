"""Lion (arXiv 2302.06675): the step has the sign of an interpolated momentum.

With g the clipped gradient and every operation rounded to float32:

    u = sign(m·β₁ + g·(1 - β₁))
    m = m·β₂ + g·(1 - β₂)
    w = w·(1 - rate·decay) - u·rate

Products and sums are separate operations, so a step has the same bits on every machine.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.adamw import AdamW
from atom.optim.muon import MOMENTUM
from atom.optim.optimizer import Part, StateTensor, StepTerms
from atom.swap.state_form import StateForm


@dataclass(frozen=True)
class Lion(AdamW):
    """Lion with one momentum for each weight, in float32 in every form of the state.

    `epsilon` and `seed` have no effect.
    """

    elementwise: ClassVar[bool] = True
    betas: tuple[float, float] = (0.9, 0.99)

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        return {MOMENTUM: StateTensor(parameter.shape)}

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        clipped, momentum = step.clipped(gradient), part.state[MOMENTUM]
        beta1, beta2 = self.betas
        direction = momentum.mul(beta1).add_(clipped.mul(1 - beta1)).sign_()
        momentum.mul_(beta2).add_(clipped.mul_(1 - beta2))
        with part.weights() as weights:
            weights.mul_(self.decay(part.parameter, step))
            weights.sub_(direction.mul_(step.learning_rate))
