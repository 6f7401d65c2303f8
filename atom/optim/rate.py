"""Learning rate as a pure function of the round."""

import math
from dataclasses import dataclass
from typing import Literal

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class RateSettings:
    """Warm-up from zero, then decay to `final_learning_rate` at round `rounds`."""

    learning_rate: float
    final_learning_rate: float = 0.0
    warmup_rounds: int = 0
    decay: Decay = "constant"
    rounds: int | None = None
    """None: an endless run; after the warm-up the rate stays at `learning_rate`."""


def learning_rate(settings: RateSettings, round: int) -> float:
    """The rate of the step that commits `round`; the first round is 1.

    As nanoGPT's with iteration = round - 1, except that the last round, not the one after it,
    gets the final rate. Raises: ValueError for a round below 1.
    """
    if round < 1:
        raise ValueError(f"round {round}: the first step commits round 1")
    peak, final = settings.learning_rate, settings.final_learning_rate
    if round <= settings.warmup_rounds:
        return peak * round / (settings.warmup_rounds + 1)
    if settings.decay == "constant" or settings.rounds is None:
        return peak
    if round >= settings.rounds:
        return final
    start = settings.warmup_rounds + 1
    progress = (round - start) / (settings.rounds - start)
    return final + _remaining(settings.decay, progress) * (peak - final)


def _remaining(decay: Decay, progress: float) -> float:
    """1 at progress 0, 0 at progress 1.

    Rounded: mathematics libraries differ in a cosine's last bit, and replicas must not.
    """
    if decay == "linear":
        return 1.0 - progress
    return round(0.5 * (1.0 + math.cos(math.pi * progress)), 12)
