"""How many tokens a pass needs so that the device computes while sub-models are being loaded.

A step computes for tokens · flops per token / compute rate; the loads that begin with it take
their bytes / link rate. Forward counts once; a backward recomputes its forward and costs twice as
much on top, so three times (the last sub-model's forward and backward together as well).
Reckoned, not measured: latencies, attention's true speed and the way back of gradients are left
out. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atom.daemon.pass_steps import PassStep

_BACKWARD_FORWARDS = 3


@dataclass(frozen=True)
class Rates:
    """What a box reaches in practice, not what its box says."""

    link_bytes_per_s: float
    """Host to device."""
    compute_flops_per_s: float


@dataclass(frozen=True)
class HidingTokens:
    """Tokens per pass from which on loads cost no time."""

    in_sum: int
    """All loads together take no longer than all computing."""
    one_by_one: int | None
    """Every load fits behind the step it begins with; None: one of them has nothing to hide in."""


def hiding_tokens(
    steps: Sequence[PassStep],
    load_bytes: Sequence[int],
    flops_per_token: Sequence[float],
    rates: Rates,
) -> HidingTokens:
    """`load_bytes` and `flops_per_token` (forward) are by sub-model.

    The load that a pass has to wait for at its beginning is left out: no number of tokens hides it.
    """
    flops_per_byte = rates.compute_flops_per_s / rates.link_bytes_per_s
    all_bytes, all_flops, worst = 0, 0.0, 0.0
    for step in steps:
        loaded = sum(load_bytes[s] for s in step.loads if s != step.sub_model)
        times = _BACKWARD_FORWARDS if step.backward else 1
        flops = times * flops_per_token[step.sub_model]
        all_bytes, all_flops = all_bytes + loaded, all_flops + flops
        if loaded:
            worst = max(worst, loaded / flops if flops else float("inf"))
    in_sum = math.ceil(all_bytes / all_flops * flops_per_byte) if all_flops else 0
    endless = worst == float("inf")
    return HidingTokens(in_sum, None if endless else math.ceil(worst * flops_per_byte))
