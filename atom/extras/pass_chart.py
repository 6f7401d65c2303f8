"""A chart of a pass in characters: a row for each lane, time from left to right. Pure.

A column is a span of time, and shows the sub-model that works for most of it. If a lane works for
only a part of each column, a fraction of the columns equal to its share of the time shows a
sub-model; the others show a dot.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase, digits

from atom.swap.schedule import ValuesIn, ValuesOut
from atom.swap.timeline import Lane, Span, Timeline

_ROWS: dict[Lane, str] = {
    "load": "loads",
    "compute": "computing",
    "gradients": "gradients out",
    "sums": "gradients added",
}
_SYMBOLS = digits + ascii_lowercase + ascii_uppercase
_VALUES, _PARTLY, _IDLE = "~", ".", " "
_NAME, _SHARE = max(map(len, _ROWS.values())) + 1, len(" 100%")
_LEAST_COLUMNS, _TICK_COLUMNS = 10, 10
_NOTHING = 1e-6
"""Fraction of a column below which a time is a rounding error."""


def pass_chart(timeline: Timeline, sub_models: int, width: int) -> tuple[list[str], str]:
    """Draw a pass.

    Args:
        timeline: Timeline of the pass.
        sub_models: Number of sub-models.
        width: Width of the chart in columns; very small widths are exceeded.

    Returns:
        Lines of the chart, and a legend of its symbols.
    """
    columns = max(width - _NAME - _SHARE - len("││"), _LEAST_COLUMNS)
    alike = math.ceil(sub_models / len(_SYMBOLS))
    rows = []
    for device in range(timeline.devices):
        own = timeline.of_device(device)
        if timeline.devices > 1:
            rows.append(f"device {device}")
        for lane, name in _ROWS.items():
            spans = own.lane(lane)
            if busy_s := sum(span.seconds for span in spans):
                drawn = _drawn(spans, timeline.seconds / columns, columns, alike)
                rows.append(f"{name:{_NAME}}│{drawn}│{busy_s / timeline.seconds:5.0%}")
    rows.append(" " * (_NAME + 1) + _axis(timeline.seconds * 1e3, columns))
    return rows, _legend(timeline.spans, sub_models, alike)


def _drawn(spans: Iterable[Span], column_s: float, columns: int, alike: int) -> str:
    """Return the row of one lane.

    `alike`: Number of consecutive sub-models that share a symbol.
    """
    at_work: list[dict[str, float]] = [defaultdict(float) for _ in range(columns)]
    for span in spans:
        first, last = (int(s / column_s) for s in (span.start_s, span.end_s))
        for column in range(first, min(last + 1, columns)):
            start_s, end_s = column * column_s, (column + 1) * column_s
            shared_s = min(span.end_s, end_s) - max(span.start_s, start_s)
            if shared_s > column_s * _NOTHING:
                at_work[column][_symbol(span, alike)] += shared_s / column_s
    drawn, due = "", 0.0  # work that is not drawn yet, in columns
    for shares in at_work:
        busy = sum(shares.values())
        due = due + busy if busy else 0.0
        if due >= 1 / 2 - _NOTHING:
            drawn += max(shares, key=shares.__getitem__)
            due -= 1
        else:
            drawn += _PARTLY if busy else _IDLE
    return drawn


def _symbol(span: Span, alike: int) -> str:
    if isinstance(span.event, ValuesIn | ValuesOut):
        return _VALUES
    return _SYMBOLS[span.sub_model // alike]


def _axis(milliseconds: float, columns: int) -> str:
    """Return a time axis with round numbers, each beginning at the column of its time."""
    least = milliseconds * _TICK_COLUMNS / columns
    power = 10.0 ** math.floor(math.log10(least))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= least)
    axis = ""
    for tick in range(int(milliseconds / step) + 1):
        said = f"╵{tick * step:,.10g}"
        column = round(tick * step * columns / milliseconds)
        if column + len(said) > columns:
            break
        axis = f"{axis:{column}}{said}"
    return f"{axis} ms"


def _legend(spans: Sequence[Span], sub_models: int, alike: int) -> str:
    used = _SYMBOLS[: math.ceil(sub_models / alike)]
    kinds = [[s for s in kind if s in used] for kind in (digits, ascii_lowercase, ascii_uppercase)]
    ranges = ", ".join(f"{kind[0]}-{kind[-1]}" if kind[1:] else kind[0] for kind in kinds if kind)
    of_each = f", {alike} to a symbol" if alike > 1 else ""
    words = [f"{ranges}: sub-models 0 to {sub_models - 1}{of_each}, forward, then backward"]
    if any(isinstance(span.event, ValuesIn | ValuesOut) for span in spans):
        words.append(f"{_VALUES} values between sub-models")
    return "; ".join([*words, f"{_PARTLY} at work for a part of that time"])
