"""A pipeline in small, speeds of its steps, and losses over time. Pure.

Passes and queues of lines shrink with `Scale.seconds`, boundaries with `Scale.bytes`, lines with
the quotient, so that each takes the same share of a step.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

STEP_TOKENS, SEQUENCE_TOKENS = 131_072, 2048
NUMBER_BYTES = 2
"""Size of an activation in mixed precision; float32 takes twice as long on the lines."""


@dataclass(frozen=True)
class Pipeline:
    """A model in equal stages, one on each node."""

    parameters: float
    model_dim: int
    nodes: int
    flops_per_s: float
    """Rate of a card. Forward takes two operations per parameter and token, backward four."""
    line_bytes_per_s: float
    """Rate of each node's line, up and down alike."""
    number_bytes: int = NUMBER_BYTES
    """Size of an activation at a boundary."""
    step_tokens: int = STEP_TOKENS
    """Tokens of an optimizer step."""

    def forward_s(self, tokens: float) -> float:
        """Return seconds of one stage's forward; backward takes twice as long."""
        return 2 * self.parameters / self.nodes * tokens / self.flops_per_s

    def boundary_bytes(self, tokens: float) -> float:
        """Return bytes from a stage to the next, and of the gradient back."""
        return tokens * self.model_dim * self.number_bytes

    @property
    def most_tokens_per_s(self) -> float:
        """Bound of every schedule: stages that always compute, or lines that are always full both
        ways, with activations and gradients."""
        return min(1 / (3 * self.forward_s(1)), self.line_bytes_per_s / self.boundary_bytes(1))


@dataclass(frozen=True)
class Scale:
    """Real seconds and bytes per second and byte in small."""

    seconds: float
    bytes: float

    def line(self, bytes_per_s: float) -> float:
        return bytes_per_s * self.seconds / self.bytes


@dataclass(frozen=True)
class Trial:
    """Steps of a schedule, in small."""

    schedule: str
    micro_batches: int
    steps: int
    forward_s: float
    """Seconds asleep for one micro-batch's forward in one stage."""
    elements: int
    """Elements of one micro-batch at a boundary."""
    step_tokens: int = STEP_TOKENS

    @classmethod
    def of(
        cls, real: Pipeline, scale: Scale, schedule: str, micro_batches: int, steps: int
    ) -> "Trial":
        tokens = real.step_tokens / micro_batches
        elements = round(real.boundary_bytes(tokens) / scale.bytes / NUMBER_BYTES)
        forward_s = real.forward_s(tokens) / scale.seconds
        return cls(schedule, micro_batches, steps, forward_s, elements, real.step_tokens)


@dataclass(frozen=True)
class Step:
    """Step of one stage, in Unix seconds."""

    trial: int
    began: float
    ended: float
    passes_s: float


@dataclass(frozen=True)
class Found:
    """Figures of one trial."""

    schedule: str
    micro_batches: int
    tokens_per_s: float
    """Speed of the real pipeline."""
    busy: float
    """Share of time in passes, the mean of all stages."""
    late: float
    """Duration of passes by their planned duration."""


def found(trials: Sequence[Trial], scale: Scale, steps: Sequence[Sequence[Step]]) -> list[Found]:
    """Return figures by trial from steps by stage; the first stage begins and ends a step."""
    rows = list[Found]()
    for number, trial in enumerate(trials):
        mine = [[step for step in each if step.trial == number] for each in steps]
        seconds = mine[0][-1].ended - mine[0][0].began
        passes_s = sum(step.passes_s for each in mine for step in each) / len(mine)
        due_s = 3 * trial.forward_s * trial.micro_batches * trial.steps
        per_s = trial.step_tokens * trial.steps / (seconds * scale.seconds)
        rows.append(
            Found(trial.schedule, trial.micro_batches, per_s, passes_s / seconds, passes_s / due_s)
        )
    return rows


Curve = Sequence[tuple[float, float]]
"""Unix seconds, each with the loss from then on."""


def loss_at(curve: Curve, moment: float) -> float:
    """Return the loss at a moment; NaN if there is none yet."""
    place = bisect_left(curve, moment, key=lambda each: each[0])
    return curve[place - 1][1] if place else math.nan
