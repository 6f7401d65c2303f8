"""Figures of passes, predicted and real ones."""

import pytest
from engine_rig import EngineRig
from hand_written_program import FINEST, batches
from hypothesis import given
from hypothesis import strategies as st
from schedules import shapes_with_loaded

from atom.swap.pass_shares import PassShares
from atom.swap.schedule import Forward, GradientOut, Load, Shape, training_pass
from atom.swap.timeline import Durations, Recording, Span, Timeline, simulate


@given(shapes_with_loaded(most_sub_models=6), st.data())
def test_the_figures_of_any_pass_add_up(
    case: tuple[Shape, frozenset[int]], data: st.DataObject
) -> None:
    shape, loaded = case
    seconds = st.floats(0, 20)
    column = st.lists(seconds, min_size=shape.sub_models, max_size=shape.sub_models).map(tuple)
    durations = Durations(*(data.draw(column) for _ in range(4)))
    timeline = simulate(training_pass(shape, loaded), shape, durations)
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
    assert PassShares.of(Timeline(())).text() == "the device computes 0.0% of 0.000 s"


def test_a_real_pass_has_figures() -> None:
    recording = Recording()
    rig = EngineRig(FINEST, observer=recording)
    rig.engine.run_pass(batches([2, 2]), [1, 2])
    rig.device.close()
    recorded = recording.take()
    figures = PassShares.of(recorded)
    assert 0 < figures.share <= 1
    assert figures.computing_s + sum(figures.waits_s.values()) == pytest.approx(recorded.seconds)
