"""A timeline as a Chrome trace: JSON that chrome://tracing and ui.perfetto.dev open. Pure.

The format is Google's "Trace Event Format": complete events ("X") with `ts` and `dur` in
microseconds, one row (`tid`) per lane of work, rows named by metadata events ("M").
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from atom.swap.schedule import (
    Backward,
    Forward,
    GradientOut,
    Load,
    Observed,
    OptimizerStep,
    ValuesIn,
    ValuesOut,
)
from atom.swap.timeline import Span, Timeline

ROWS: dict[type[Observed], str] = {
    OptimizerStep: "optimizer",
    Load: "loads",
    ValuesIn: "values in",
    Forward: "computing",
    Backward: "computing",
    ValuesOut: "values out",
    GradientOut: "gradients out",
}
"""From top to bottom. What shares a row happens one after the other. Values leave while gradients
are being added on the host, so these have a row of their own."""
_PROCESS = 1


def chrome_trace(timeline: Timeline, names: Sequence[str] = (), title: str = "one pass") -> str:
    """The trace of one pass. `names`: of the sub-models, in order; without, their numbers.

    Spans of a row never overlap: clocks of host and device may differ by microseconds, and a
    viewer would take an overlap for one call within another.
    """
    events = [_metadata("process_name", 0, name=title)]
    for row, name in enumerate(dict.fromkeys(ROWS.values()), start=1):
        spans = [span for span in timeline.spans if ROWS[type(span.event)] == name]
        if spans:
            events.append(_metadata("thread_name", row, name=name))
            events.append(_metadata("thread_sort_index", row, sort_index=row))
            events += _row(spans, row, names)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _row(spans: Sequence[Span], row: int, names: Sequence[str]) -> list[dict[str, Any]]:
    events, free_us = list[dict[str, Any]](), 0.0
    for span in spans:
        start_us = max(_microseconds(span.start_s), free_us)
        free_us = max(_microseconds(span.end_s), start_us)
        events.append(
            {
                "name": _title(span, names),
                "cat": span.lane,
                "ph": "X",
                "pid": _PROCESS,
                "tid": row,
                "ts": start_us,
                "dur": round(free_us - start_us, 3),
                "args": asdict(span.event),
            }
        )
    return events


def _title(span: Span, names: Sequence[str]) -> str:
    """ "forward blocks.3, micro-batch 2", "gradient out sub-model 0"."""
    kind = re.sub(r"(?<!^)([A-Z])", r" \1", type(span.event).__name__).lower()
    number = span.sub_model
    name = names[number] if number < len(names) and names[number] else f"sub-model {number}"
    batch = "" if span.micro_batch is None else f", micro-batch {span.micro_batch}"
    return f"{kind} {name}{batch}"


def _microseconds(seconds: float) -> float:
    """To the nanosecond, which is what the format has room for."""
    return round(seconds * 1e6, 3)


def _metadata(kind: str, row: int, **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": row, "args": arguments}
