"""One pass while it runs: its micro-batches, what it was begun with, who judges its numbers."""

from dataclasses import dataclass, field

from atom.swap.gate import Gate
from atom.swap.parameter_gradients import Terms
from atom.swap.schedule import Shape
from atom.swap.segment import MicroBatch


@dataclass(frozen=True)
class RunningPass:
    batches: list[MicroBatch]
    shape: Shape
    loss_scale: float = 1.0
    """The loss is multiplied by it before the backward, gradients are divided by it in float32."""
    gate: Gate | None = None
    """None: no gradients are wanted."""
    terms: Terms = field(default_factory=Terms)

    @property
    def training(self) -> bool:
        return self.gate is not None

    def losses(self) -> list[float]:
        """Those known so far. Waits for the device."""
        return [float(batch.loss) for batch in self.batches if batch.loss is not None]
