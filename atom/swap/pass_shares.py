"""Use of the device during a pass: its share of computing, and the causes of its waits.

Each gap between computations is attributed to the event that would have to end sooner to make the
gap shorter. Pure functions.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from atom.swap.schedule import Backward, GradientOut, Load, ValuesIn, ValuesOut
from atom.swap.timeline import Span, Timeline

LINK = "link"
"""Cause of a wait: the sub-model's parameters were not loaded yet."""
GRADIENTS = "gradients"
"""Cause of a wait: earlier gradients had not left their slot yet."""
OPTIMIZER = "optimizer"
"""Cause of a wait: the optimizer was still updating the sub-model's parameters."""
VALUES = "values"
"""Cause of a wait: values were moving to the host, from the host, or from another device."""
HOST = "host"
"""Cause of a wait: the host had not issued the next operation yet."""
END = "end"
"""Cause of a wait: everything is computed, but the last gradients are still leaving."""
NEGLIGIBLE_S = 1e-9
"""Longest gap that is attributed to rounding of sums of seconds."""


class Wait(NamedTuple):
    """Time in which the device was idle until `sub_model` could continue."""

    sub_model: int
    reason: str
    start_s: float
    end_s: float


def waits_s(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of waiting for every cause, 0 included, averaged over the devices.

    Computing and waits add up to the whole pass. If a device of a group waits without another
    cause, it waits for values from the others.
    """
    found = dict.fromkeys((LINK, GRADIENTS, OPTIMIZER, VALUES, HOST, END), 0.0)
    devices = timeline.devices
    for own in map(timeline.of_device, range(devices)):
        for wait in waits(own):
            reason = VALUES if wait.reason == HOST and devices > 1 else wait.reason
            found[reason] += (wait.end_s - wait.start_s) / devices
        computed_until = max((span.end_s for span in own.lane("compute")), default=0.0)
        found[END] += (timeline.seconds - computed_until) / devices
    return found


def figures(timeline: Timeline) -> dict[str, Any]:
    """Return the length of a pass (`pass_seconds`), and its shares rounded to four digits."""
    seconds = timeline.seconds
    return {
        "pass_seconds": round(seconds, 6),
        "computing": round(timeline.computing, 4),
        "waiting": {
            reason: round(waited_s / seconds, 4) if seconds else 0.0
            for reason, waited_s in waits_s(timeline).items()
        },
    }


def waits(timeline: Timeline) -> list[Wait]:
    """Return every wait of the device, in order, until it computes for the last time.

    A gap is divided at the end of the update, then of the load, of the gradients, and of the
    values.
    """
    found, free_s = list[Wait](), 0.0
    moves = [*timeline.lane("load"), *timeline.lane("gradients")]
    steps = timeline.lane("optimizer")
    for span in timeline.lane("compute"):
        at = free_s
        if span.start_s - at > NEGLIGIBLE_S:
            for reason, until in _causes(span, free_s, moves, steps):
                until = min(until, span.start_s)
                if until - at > NEGLIGIBLE_S:
                    found.append(Wait(span.sub_model, reason, at, until))
                    at = until
        free_s = max(free_s, span.end_s)
    return found


def _causes(
    span: Span, free_s: float, moves: Sequence[Span], steps: Sequence[Span]
) -> Iterator[tuple[str, float]]:
    """Yield each cause with the second until which it delayed the sub-model."""
    s, start_s = span.sub_model, span.start_s
    before = [move for move in moves if move.end_s <= start_s]
    own = [b for b in before if isinstance(b.event, Load) and b.sub_model == s and free_s < b.end_s]
    if own:
        load = own[-1]
        updated = (step.end_s for step in steps if step.sub_model == s)
        # the clocks of host and device may differ slightly
        updates = (min(end_s, load.start_s) for end_s in updated if end_s < load.end_s)
        yield OPTIMIZER, max(updates, default=free_s)
        yield LINK, load.end_s
    if isinstance(span.event, Backward) and span.micro_batch == 0:
        yield GRADIENTS, _last_s(before, GradientOut)
    yield VALUES, _last_s(before, ValuesIn | ValuesOut)
    yield HOST, start_s


def _last_s(spans: list[Span], kind: Any) -> float:
    return max((span.end_s for span in spans if isinstance(span.event, kind)), default=0.0)
