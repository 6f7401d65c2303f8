"""SGD with momentum: the operations of `torch.optim.SGD`, so its bits on the same machine.

PyTorch rounds a product and a sum together or separately, depending on the processor. Therefore the
steps of two peers may differ in their last bits.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.muon import MOMENTUM
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms
from atom.swap.state_form import StateForm


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
