"""Learning rate as a pure function of the round."""

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Literal

Decay = Literal["constant", "linear", "cosine", "1-sqrt"]

_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
_ORDERS = 70  # orders of the cosine's series; the remainder is below 10**-60 up to π


@dataclass(frozen=True)
class RateSettings:
    """Warm-up from zero, then decay to `final_learning_rate` at round `rounds`."""

    learning_rate: float
    final_learning_rate: float = 0.0
    warmup_rounds: int = 0
    decay: Decay = "constant"
    rounds: int | None = None
    """Last round of the schedule; None: the run has no end.

    Without an end the rate stays at `learning_rate` after the warm-up.
    """
    decay_rounds: int | None = None
    """Number of rounds at the end over which the rate decays; None: all rounds after the warm-up.

    With fewer rounds the schedule is known as WSD: warm-up, stable, decay (arXiv 2404.06395).
    """


def learning_rate(settings: RateSettings, round: int) -> float:
    """Return the rate of the step that commits `round`; the first round is 1.

    Equals the schedules of transformers at step `round` with one more step of warm-up. So the first
    round has a rate above zero, and the last round has the final rate.

    Raises:
        ValueError: The round is below 1.
    """
    if round < 1:
        raise ValueError(f"round {round} does not exist: the first step commits round 1")
    peak, final = settings.learning_rate, settings.final_learning_rate
    if round <= settings.warmup_rounds:
        return peak * round / (settings.warmup_rounds + 1)
    if settings.decay == "constant" or settings.rounds is None:
        return peak
    if round >= settings.rounds:
        return final
    first = settings.warmup_rounds + 1
    decaying = settings.decay_rounds
    start = first if decaying is None else max(first, settings.rounds - decaying)
    if round <= start:
        return peak
    progress = (round - start) / (settings.rounds - start)
    return final + _remaining(settings.decay, progress) * (peak - final)


def _remaining(decay: Decay, progress: float) -> float:
    """Return the remaining fraction of the decay: 1 at progress 0, 0 at progress 1."""
    if decay == "linear":
        return 1.0 - progress
    if decay == "1-sqrt":
        return 1.0 - math.sqrt(progress)  # IEEE 754 defines its rounding
    with localcontext(Context(prec=50)):
        return float(round((1 + _cosine(Decimal(progress))) / 2, 12))


def _cosine(progress: Decimal) -> Decimal:
    """Return the cosine of π·progress by its series, to 40 digits where the context has 50.

    The cosines of mathematics libraries differ in the last bit, and replicas must not.
    """
    square = -((_PI * progress) ** 2)
    term = cosine = Decimal(1)
    for order in range(2, _ORDERS, 2):
        term *= square / (order * (order - 1))
        cosine += term
    return cosine
