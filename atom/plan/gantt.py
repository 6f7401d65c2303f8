"""A timeline as bars to draw. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atom.swap.schedule import Backward, Forward, GradientOut, Load, ValuesIn, ValuesOut
from atom.swap.timeline import Span, Timeline

LANES = ("load", "compute", "gradients")


@dataclass(frozen=True)
class Bar:
    """One rectangle. `kind`: load, forward, backward, gradients, values (between sub-models, to
    the host or back), or idle (the device waits)."""

    lane: str
    kind: str
    sub_model: int | None
    start_s: float
    end_s: float


def bars(timeline: Timeline) -> list[Bar]:
    """The micro-batches of one visit to a sub-model are one bar; gaps of the device are bars."""
    drawn: list[Bar] = []
    last: dict[str, int] = {}
    for bar in map(_bar, timeline.spans):
        before = drawn[last[bar.lane]] if bar.lane in last else None
        if before and (before.kind, before.sub_model) == (bar.kind, bar.sub_model):
            drawn[last[bar.lane]] = Bar(
                bar.lane, bar.kind, bar.sub_model, before.start_s, bar.end_s
            )
        else:
            last[bar.lane] = len(drawn)
            drawn.append(bar)
    return [*drawn, *_waits(drawn, timeline.seconds)]


def _bar(span: Span) -> Bar:
    match span.event:
        case Load(sub_model, _):
            kind = "load"
        case Forward(sub_model, _):
            kind = "forward"
        case Backward(sub_model, _):
            kind = "backward"
        case GradientOut(sub_model):
            kind = "gradients"
        case ValuesIn(sub_model) | ValuesOut(sub_model):
            kind = "values"
        case other:
            raise AssertionError(f"{other} takes no time")
    return Bar(span.lane, kind, sub_model, span.start_s, span.end_s)


def _waits(drawn: Iterable[Bar], seconds: float) -> Iterator[Bar]:
    at = 0.0
    for bar in drawn:
        if bar.lane != "compute":
            continue
        if bar.start_s > at:
            yield Bar("compute", "idle", None, at, bar.start_s)
        at = max(at, bar.end_s)
    if seconds > at:
        yield Bar("compute", "idle", None, at, seconds)
