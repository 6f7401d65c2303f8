"""A pipeline in small, what its steps come to, and losses over time. Pure.

A real second is `Scale.seconds` here, and so on: passes and the lines' queues shrink with seconds,
what is sent with bytes, and lines with the quotient, so that each takes the same share of a step.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

STEP_TOKENS, SEQUENCE_TOKENS = 131_072, 2048
NUMBER_BYTES = 2
"""Of an activation: mixed precision. float32 would take twice as long on the lines."""


@dataclass(frozen=True)
class Pipeline:
    """A model in equal stages, one on each node."""

    parameters: float
    model_dim: int
    nodes: int
    flops_per_s: float
    """Of a card. Forward takes two per parameter and token, backward four."""
    line_bytes_per_s: float
    """Of each node, up and down alike."""

    def forward_s(self, tokens: float) -> float:
        """Of one stage; backward takes twice as long."""
        return 2 * self.parameters / self.nodes * tokens / self.flops_per_s

    def boundary_bytes(self, tokens: float) -> float:
        """From a stage to the next, and of its gradient back."""
        return tokens * self.model_dim * NUMBER_BYTES

    @property
    def most_tokens_per_s(self) -> float:
        """No schedule makes more: either every stage computes without a pause, or the lines are
        always full, activations one way and gradients the other at the same time."""
        return min(1 / (3 * self.forward_s(1)), self.line_bytes_per_s / self.boundary_bytes(1))


@dataclass(frozen=True)
class Scale:
    """How many real ones are one here."""

    seconds: float
    bytes: float

    def line(self, bytes_per_s: float) -> float:
        return bytes_per_s * self.seconds / self.bytes


@dataclass(frozen=True)
class Trial:
    """So many steps of a schedule."""

    schedule: str
    micro_batches: int
    steps: int
    forward_s: float
    """Of one micro-batch in one stage, asleep."""
    elements: int
    """Of one micro-batch's boundary."""

    @classmethod
    def of(
        cls, real: Pipeline, scale: Scale, schedule: str, micro_batches: int, steps: int
    ) -> "Trial":
        tokens = STEP_TOKENS / micro_batches
        elements = round(real.boundary_bytes(tokens) / scale.bytes / NUMBER_BYTES)
        return cls(schedule, micro_batches, steps, real.forward_s(tokens) / scale.seconds, elements)


@dataclass(frozen=True)
class Step:
    """Of one stage. Unix seconds."""

    trial: int
    began: float
    ended: float
    passes_s: float


@dataclass(frozen=True)
class Found:
    """Of one trial."""

    schedule: str
    micro_batches: int
    tokens_per_s: float
    """Of the real pipeline."""
    busy: float
    """The share of the time that the mean stage spends in passes."""
    late: float
    """What passes took, by what they were to take."""


def found(trials: Sequence[Trial], scale: Scale, steps: Sequence[Sequence[Step]]) -> list[Found]:
    """By trial; `steps` by stage. The first stage begins a step and is the last to end it."""
    told = list[Found]()
    for number, trial in enumerate(trials):
        mine = [[step for step in each if step.trial == number] for each in steps]
        seconds = mine[0][-1].ended - mine[0][0].began
        passes_s = sum(step.passes_s for each in mine for step in each) / len(mine)
        due_s = 3 * trial.forward_s * trial.micro_batches * trial.steps
        per_s = STEP_TOKENS * trial.steps / (seconds * scale.seconds)
        told.append(
            Found(trial.schedule, trial.micro_batches, per_s, passes_s / seconds, passes_s / due_s)
        )
    return told


Curve = Sequence[tuple[float, float]]
"""Unix seconds, and the loss since then."""


def loss_at(curve: Curve, moment: float) -> float:
    """NaN: there is none yet."""
    place = bisect_left(curve, moment, key=lambda each: each[0])
    return curve[place - 1][1] if place else math.nan
