"""SGD and Lion: optimizers with at most one momentum per weight, in float32.

SGD does the operations of `torch.optim.SGD`, so it has its bits on the same machine. PyTorch rounds
a product and a sum together or separately, depending on the processor. Therefore the steps of two
peers may differ in their last bits.

Lion (arXiv 2302.06675) steps by the sign of an interpolated momentum. With g the clipped gradient
and every operation rounded to float32:

    u = sign(m·β₁ + g·(1 - β₁))
    m = m·β₂ + g·(1 - β₂)
    w = w·(1 - rate·decay) - u·rate

Products and sums are separate operations, so a step of Lion has the same bits on every machine.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms
from atom.swap.host_store import StateForm

MOMENTUM = "momentum"
"""Name of the momentum among the state of a parameter."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; it keeps a momentum in float32 if `momentum` is not 0."""

    elementwise: ClassVar[bool] = True
    reproducible: ClassVar[bool] = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    """Decay of parameters with two or more dimensions, added to the gradient."""
    nesterov: bool = False
    decay_all: bool = False
    """True if biases and norms decay too."""

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        return {MOMENTUM: StateTensor(parameter.shape)} if self.momentum else {}

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        gradient = step.clipped(gradient)
        with part.weights() as weights:
            if self.weight_decay and (self.decay_all or len(part.parameter.shape) >= 2):
                gradient.add_(weights, alpha=self.weight_decay)
            if self.momentum:
                mean = part.state[MOMENTUM].mul_(self.momentum).add_(gradient)
                gradient = gradient.add_(mean, alpha=self.momentum) if self.nesterov else mean
            weights.add_(gradient, alpha=-step.learning_rate)


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
