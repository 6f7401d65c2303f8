"""A timeline as bars to draw, and as three lines of characters for terminals. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from atom.swap.schedule import Backward, Forward, GradientOut, Load, ValuesIn, ValuesOut
from atom.swap.timeline import Span, Timeline

LANES = ("load", "compute", "gradients")

MARKS = {"load": "▒", "forward": "█", "backward": "▓", "gradients": "▒", "values": "▒", "idle": " "}


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


def strips(bars: Sequence[Bar], columns: int) -> dict[str, str]:
    """Per lane, what it does in each of `columns` equal parts of the pass.

    A column has one mark. What does not get it is owed to later columns, so that a lane which is
    busy a third of the time shows marks in a third of its columns, however short its pieces are.
    """
    seconds = max((bar.end_s for bar in bars), default=0.0)
    width = seconds / columns if seconds else 1.0
    return {lane: _strip([b for b in bars if b.lane == lane], columns, width) for lane in LANES}


def _strip(bars: Sequence[Bar], columns: int, width: float) -> str:
    owed = {"idle": -width / 2}  # in doubt, what happens
    marks = []
    for share in _shares(bars, columns, width):
        for kind, seconds in share.items():
            owed[kind] = owed.get(kind, 0.0) + seconds
        most = max(share, key=lambda kind: owed[kind])
        owed[most] -= width
        marks.append(MARKS[most])
    return "".join(marks)


def _shares(bars: Sequence[Bar], columns: int, width: float) -> list[dict[str, float]]:
    """Per column, the seconds of each kind in it; the rest is idle."""
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in bars:
        if bar.kind == "idle":
            continue
        first, last = int(bar.start_s / width), int(bar.end_s / width)
        for column in range(first, min(last, columns - 1) + 1):
            begin, end = max(bar.start_s, column * width), min(bar.end_s, (column + 1) * width)
            if end > begin:
                shares[column][bar.kind] = shares[column].get(bar.kind, 0.0) + end - begin
    for share in shares:
        share["idle"] = max(0.0, width - sum(share.values()))
    return shares
