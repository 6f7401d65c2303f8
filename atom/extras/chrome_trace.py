"""A pass as a Chrome trace: JSON that chrome://tracing and ui.perfetto.dev open. Pure.

The format is Google's "Trace Event Format": complete events ("X") with `ts` and `dur` in
microseconds, one row (`tid`) per lane of work, rows named by metadata events ("M").
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROWS = {
    "optimizer step": "optimizer",
    "load": "loads",
    "values in": "values in",
    "forward": "computing",
    "backward": "computing",
    "values out": "values out",
    "gradient out": "gradients out",
    "gradient sum": "gradients added",
}
"""Kind of work → row, from top to bottom. What shares a row happens one after the other."""
_PROCESS = 1


def chrome_trace(spans: Sequence[Mapping[str, Any]], title: str) -> str:
    """The trace of one pass. `spans`: as `Span.to_json` (`atom/swap/timeline.py`) has them.

    Spans of a row never overlap: clocks of host and device may differ by microseconds, and a
    viewer would take an overlap for one call within another.
    """
    events = [_metadata("process_name", 0, name=title)]
    for row, name in enumerate(dict.fromkeys(ROWS.values()), start=1):
        here = [span for span in spans if ROWS[span["kind"]] == name]
        if here:
            events.append(_metadata("thread_name", row, name=name))
            events.append(_metadata("thread_sort_index", row, sort_index=row))
            events += _row(here, row)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _row(spans: Sequence[Mapping[str, Any]], row: int) -> list[dict[str, Any]]:
    events, free_us = list[dict[str, Any]](), 0.0
    for span in spans:
        start_us = max(_microseconds(span["start_s"]), free_us)
        free_us = max(_microseconds(span["end_s"]), start_us)
        batch = span["event"].get("micro_batch")
        which = "" if batch is None else f", micro-batch {batch}"
        events.append(
            {
                "name": f"{span['kind']} {span['name']}{which}",
                "ph": "X",
                "pid": _PROCESS,
                "tid": row,
                "ts": start_us,
                "dur": round(free_us - start_us, 3),
                "args": span["event"],
            }
        )
    return events


def _microseconds(seconds: float) -> float:
    """To the nanosecond, which is what the format has room for."""
    return round(seconds * 1e6, 3)


def _metadata(kind: str, row: int, **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": row, "args": arguments}
