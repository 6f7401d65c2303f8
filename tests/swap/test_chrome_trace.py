"""Traces and figures of passes, predicted and real ones."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import pytest
from engine_rig import EngineRig
from hand_written_program import FINEST, batches
from hypothesis import given
from hypothesis import strategies as st
from schedules import shapes_with_loaded

from atom.swap.chrome_trace import ROWS, chrome_trace
from atom.swap.pass_shares import PassShares
from atom.swap.schedule import (
    Forward,
    GradientOut,
    Load,
    Observed,
    Shape,
    ValuesOut,
    training_pass,
)
from atom.swap.timeline import Durations, Recording, Span, Timeline, simulate


def spans_by_row(trace: str) -> dict[str, list[dict[str, Any]]]:
    """What a viewer draws, per named row, in the order of the file."""
    events = json.loads(trace)["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["ph"] for e in events} <= {"M", "X"}
    drawn: dict[str, list[dict[str, Any]]] = {name: [] for name in rows.values()}
    for event in events:
        if event["ph"] == "X":
            drawn[rows[event["tid"]]].append(event)
    return drawn


def assert_well_formed(trace: str, timeline: Timeline) -> None:
    rows = spans_by_row(trace)
    assert sum(map(len, rows.values())) == len(timeline.spans)
    for spans in rows.values():
        assert spans, "a row without spans"
        assert all(span["ts"] >= 0 and span["dur"] >= 0 for span in spans)
        for before, after in pairwise(spans):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3


@pytest.fixture(scope="module")
def recorded() -> Iterator[Timeline]:
    """Of a real pass on the CPU: two micro-batches."""
    recording = Recording()
    rig = EngineRig(FINEST, observer=recording)
    rig.engine.run_pass(batches([2, 2]), [1, 2])
    yield recording.take()
    rig.device.close()


def test_a_trace_by_hand() -> None:
    spans = (
        Span(Load(0, 1), 0.0, 0.5),
        Span(Forward(0, 2), 0.5, 0.75),
        Span(GradientOut(0), 1.0, 1.0000014),
    )
    rows = spans_by_row(chrome_trace(Timeline(spans), ["blocks.0"]))
    assert list(rows) == ["loads", "computing", "gradients out"]
    load, forward, out = (row[0] for row in rows.values())
    assert (load["name"], load["ts"], load["dur"]) == ("load blocks.0", 0.0, 500_000.0)
    assert load["args"] == {"sub_model": 0, "slot": 1}
    assert forward["name"] == "forward blocks.0, micro-batch 2"
    assert (out["name"], out["dur"]) == ("gradient out blocks.0", 1.4)


def test_every_event_that_takes_time_has_a_row() -> None:
    assert set(ROWS) == set(get_args(Observed))


def test_values_leave_while_gradients_are_added() -> None:
    spans = (Span(GradientOut(1), 0.0, 2.0), Span(ValuesOut(0, 1), 0.5, 1.0))
    rows = spans_by_row(chrome_trace(Timeline(spans)))
    assert rows["values out"][0]["name"] == "values out sub-model 0, micro-batch 1"
    assert (rows["values out"][0]["ts"], rows["gradients out"][0]["dur"]) == (5e5, 2e6)


def test_without_names_numbers_will_do() -> None:
    trace = chrome_trace(Timeline((Span(Load(3, 0), 0.0, 1.0),)), ["only one"])
    assert spans_by_row(trace)["loads"][0]["name"] == "load sub-model 3"


def test_clocks_that_differ_make_no_span_overlap() -> None:
    timeline = Timeline((Span(GradientOut(1), 0.0, 2.0), Span(GradientOut(0), 1.999999, 3.0)))
    trace = chrome_trace(timeline)
    assert_well_formed(trace, timeline)
    first, second = spans_by_row(trace)["gradients out"]
    assert second["ts"] == first["dur"] == 2e6


def test_a_real_pass_is_well_formed(recorded: Timeline) -> None:
    trace = chrome_trace(recorded)
    assert_well_formed(trace, recorded)
    names = {span["name"] for spans in spans_by_row(trace).values() for span in spans}
    assert {"load sub-model 0", "backward sub-model 0, micro-batch 1"} <= names
    assert json.loads(chrome_trace(Timeline(())))["traceEvents"], "an empty pass has a name"


@given(shapes_with_loaded(most_sub_models=6), st.data())
def test_any_pass_is_well_formed_and_its_figures_add_up(
    case: tuple[Shape, frozenset[int]], data: st.DataObject
) -> None:
    shape, loaded = case
    seconds = st.floats(0, 20)
    column = st.lists(seconds, min_size=shape.sub_models, max_size=shape.sub_models).map(tuple)
    durations = Durations(*(data.draw(column) for _ in range(4)))
    timeline = simulate(training_pass(shape, loaded), shape, durations)
    assert_well_formed(chrome_trace(timeline), timeline)
    figures = PassShares.of(timeline)
    whole = figures.computing_s + sum(figures.waits_s.values())
    assert whole == pytest.approx(timeline.seconds, abs=1e-6)  # tiny gaps are rounding


def test_figures_in_one_line() -> None:
    spans = (
        Span(Load(0, 0), 0.0, 1.0),
        Span(Forward(0, 0), 1.0, 9.0),
        Span(GradientOut(0), 9.0, 10.0),
    )
    figures = PassShares.of(Timeline(spans))
    assert figures.text() == ("the device computes 80.0% of 10.000 s; waits: link 10.0%, end 10.0%")
    shown = figures.to_json()
    assert (shown["pass_seconds"], shown["computing"]) == (10.0, 0.8)
    assert {k: v for k, v in shown["waiting"].items() if v} == {"link": 0.1, "end": 0.1}


def test_nothing_recorded_has_figures_too() -> None:
    assert PassShares.of(Timeline(())).text() == "the device computes 0.0% of 0.000 s"


def test_a_real_pass_has_figures(recorded: Timeline) -> None:
    figures = PassShares.of(recorded)
    assert 0 < figures.share <= 1
    assert figures.computing_s + sum(figures.waits_s.values()) == pytest.approx(recorded.seconds)
