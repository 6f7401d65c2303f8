"""Chrome trace of a pass: JSON that chrome://tracing and ui.perfetto.dev open. Pure.

The format is Google's "Trace Event Format": complete events ("X") with `ts` and `dur` in
microseconds, one row (`tid`) per lane of work and, in a group, one process (`pid`) per device; both
are named by metadata events ("M").
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from atom.swap.timeline import Span

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
"""Row of each kind of work, from top to bottom. Work of one row is sequential."""


def span_json(span: Span, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a span as JSON for the trace.

    Args:
        span: the span.
        names: names of the sub-models, in order; numbers stand for missing names.
    """
    number = span.sub_model
    name = names[number] if number < len(names) and names[number] else f"sub-model {number}"
    kind = re.sub(r"(?<!^)([A-Z])", r" \1", type(span.event).__name__).lower()
    return {
        "kind": kind, "name": name, "event": asdict(span.event), "device": span.device,
        "start_s": span.start_s, "end_s": span.end_s,
    }  # fmt: skip


def chrome_trace(spans: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return the trace of one pass from spans as `span_json` returns them.

    Spans of a row never overlap: clocks of host and device may differ by microseconds, and a
    viewer would take an overlap for one call within another.
    """
    events = list[dict[str, Any]]()
    devices = sorted({span["device"] for span in spans})
    for device in devices:
        its_title = title if len(devices) == 1 else f"{title}, device {device}"
        events.append(_metadata("process_name", device, 0, name=its_title))
        for row, name in enumerate(dict.fromkeys(ROWS.values()), start=1):
            here = [s for s in spans if s["device"] == device and ROWS[s["kind"]] == name]
            if here:
                events.append(_metadata("thread_name", device, row, name=name))
                events.append(_metadata("thread_sort_index", device, row, sort_index=row))
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
                "pid": _pid(span["device"]),
                "tid": row,
                "ts": start_us,
                "dur": round(free_us - start_us, 3),
                "args": span["event"],
            }
        )
    return events


def _microseconds(seconds: float) -> float:
    """Return microseconds, rounded to nanoseconds as the format allows."""
    return round(seconds * 1e6, 3)


def _metadata(kind: str, device: int, row: int, **arguments: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _pid(device), "tid": row, "args": arguments}


def _pid(device: int) -> int:
    """Return the process number; viewers take 0 for the idle process."""
    return device + 1
