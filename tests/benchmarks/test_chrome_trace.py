"""Events of a pass in the trace."""

import json
from typing import Any, get_args

import programs  # noqa: F401 - makes benchmarks importable
import pytest

from atom.swap.schedule import (
    Backward,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    Observed,
    OptimizerStep,
    ValuesIn,
    ValuesOut,
)
from atom.swap.timeline import Span
from benchmarks.swap.chrome_trace import chrome_trace, span_json

EVERY_KIND = (
    OptimizerStep(0), Load(0, 1), ValuesIn(0, 1, 0), Forward(0, 2), Backward(0, 2),
    ValuesOut(0, 1), GradientOut(0), GradientSum(0),
)  # fmt: skip


def rows_of(*spans: Span, names: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """Per named row, in the order of the file."""
    events = json.loads(chrome_trace([span_json(span, names) for span in spans], "a pass"))
    assert events["traceEvents"][0]["args"] == {"name": "a pass"}
    rows: dict[int, list[dict[str, Any]]] = {}
    titles = {}
    for event in events["traceEvents"][1:]:
        if event["name"] == "thread_name":
            titles[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows.setdefault(event["tid"], []).append(event)
    return {titles[row]: drawn for row, drawn in rows.items()}


def test_a_trace_by_hand() -> None:
    rows = rows_of(
        Span(Load(0, 1), 0.0, 0.5),
        Span(Forward(0, 2), 0.5, 0.75),
        Span(GradientOut(1), 1.0, 1.0000014),
        names=("blocks.0",),
    )
    assert list(rows) == ["loads", "computing", "gradients out"]
    load, forward, out = (row[0] for row in rows.values())
    assert (load["name"], load["ts"], load["dur"]) == ("load blocks.0", 0.0, 500_000.0)
    assert load["args"] == {"sub_model": 0, "slot": 1}
    assert forward["name"] == "forward blocks.0, micro-batch 2"
    assert (out["name"], out["dur"]) == ("gradient out sub-model 1", 1.4)


def test_every_event_that_takes_time_has_a_row() -> None:
    assert {type(event) for event in EVERY_KIND} == set(get_args(Observed))
    drawn = rows_of(*(Span(event, 0.0, 1.0) for event in EVERY_KIND))
    assert sum(map(len, drawn.values())) == len(EVERY_KIND)


@pytest.mark.parametrize("begins_s", [1.999999, 2.0])
def test_clocks_that_differ_make_no_span_overlap(begins_s: float) -> None:
    rows = rows_of(Span(GradientOut(1), 0.0, 2.0), Span(GradientOut(0), begins_s, 3.0))
    first, second = rows["gradients out"]
    assert second["ts"] == first["dur"] == 2e6


def test_devices_of_a_group_have_rows_of_their_own() -> None:
    spans = [span_json(Span(Forward(n, 0), 0.0, 1.0 + n, device=n)) for n in range(2)]
    events = json.loads(chrome_trace(spans, "a pass"))["traceEvents"]
    drawn = [(event["pid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert drawn == [(1, 0.0, 1e6), (2, 0.0, 2e6)], "at once"
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == ["a pass, device 0", "a pass, device 1"]
