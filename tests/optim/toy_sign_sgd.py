"""Sign-SGD with momentum: an example of adding an optimizer.

Products and sums are separate operations. PyTorch's combined ones (`alpha=`, `lerp`, `addcmul`)
round once or twice, depending on the processor.
"""

from torch import Tensor

from atom.graph.ir import ParameterSpec
from atom.optim.optimizer import Optimizer, Part, StateTensor, StepTerms
from atom.swap.host_store import StateForm


class SignSGD(Optimizer):
    """m = β·m + (1 - β)·g; w = w - rate·sign(m)"""

    def __init__(self, betas: tuple[float, float], **others: float) -> None:
        self._beta = betas[0]

    def state(self, parameter: ParameterSpec, form: StateForm) -> dict[str, StateTensor]:
        return {"momentum": StateTensor(parameter.shape)}

    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        momentum = part.state["momentum"]
        momentum.mul_(self._beta).add_(step.clipped(gradient).mul_(1 - self._beta))
        with part.weights() as weights:
            weights.sub_(momentum.sign().mul_(step.learning_rate))
