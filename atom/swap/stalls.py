"""Why the device waits: the gaps in a timeline's computing, each put down to what filled it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from atom.swap.schedule import Backward, GradientOut, Load, ValuesIn, ValuesOut
from atom.swap.timeline import Span, Timeline

NEGLIGIBLE_S = 1e-9
"""Rounding of sums of seconds, not a gap."""


class Reason(Enum):
    """What would have to change for the wait to be shorter."""

    LINK = "its parameters were not loaded yet"
    GRADIENTS = "gradients had not left their slot yet"
    OPTIMIZER = "its parameters were still being updated"
    VALUES = "values between sub-models were on their way, to the host or back"
    HOST = "the host was busy with something else"


@dataclass(frozen=True)
class Stall:
    """The device had nothing to do until `sub_model` could go on."""

    sub_model: int
    reason: Reason
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def stalls(timeline: Timeline) -> list[Stall]:
    """Every wait of the device, in order; waits of one pass plus its computing make up the time
    from its beginning until it computes no more."""
    work = _Work(timeline.lane("load"), timeline.lane("gradients"), timeline.lane("optimizer"))
    found: list[Stall] = []
    free_s = 0.0
    for span in timeline.lane("compute"):
        if span.start_s - free_s > NEGLIGIBLE_S:
            found += _explain(span, free_s, work)
        free_s = max(free_s, span.end_s)
    return found


def seconds_by_reason(timeline: Timeline) -> dict[Reason, float]:
    """All reasons, the absent ones with 0."""
    totals = dict.fromkeys(Reason, 0.0)
    for stall in stalls(timeline):
        totals[stall.reason] += stall.seconds
    return totals


@dataclass(frozen=True)
class _Work:
    """What computing may wait for."""

    loads: list[Span]
    outs: list[Span]
    steps: list[Span]


def _explain(span: Span, free_s: float, work: _Work) -> Iterator[Stall]:
    """Cuts the gap [free_s, span.start_s] at the end of the update, then of the load, then of the
    gradients, then of values."""
    at, end = free_s, span.start_s
    for reason, until in _causes(span, free_s, work):
        until = min(until, end)
        if until - at > NEGLIGIBLE_S:
            yield Stall(span.sub_model, reason, at, until)
            at = until
    if end - at > NEGLIGIBLE_S:
        yield Stall(span.sub_model, Reason.HOST, at, end)


def _causes(span: Span, free_s: float, work: _Work) -> Iterator[tuple[Reason, float]]:
    """Each with the second until which it held the sub-model back."""
    loads, outs = work.loads, work.outs
    own = [
        load
        for load in loads
        if isinstance(load.event, Load)
        and load.sub_model == span.sub_model
        and free_s < load.end_s <= span.start_s
    ]
    if own:
        load = own[-1]
        steps = (step.end_s for step in work.steps if step.sub_model == span.sub_model)
        # the host's clock and the device's: they may differ by a little
        updates = (min(end_s, load.start_s) for end_s in steps if end_s < load.end_s)
        yield Reason.OPTIMIZER, max(updates, default=free_s)
        yield Reason.LINK, load.end_s
    if isinstance(span.event, Backward) and span.micro_batch == 0:
        sums = [o for o in outs if isinstance(o.event, GradientOut)]
        yield Reason.GRADIENTS, max((o.end_s for o in sums if o.end_s <= span.start_s), default=0.0)
    values = [v for v in (*loads, *outs) if isinstance(v.event, ValuesIn | ValuesOut)]
    yield Reason.VALUES, max((v.end_s for v in values if v.end_s <= span.start_s), default=0.0)
