"""Times of a pass: computed by hand, and checked against rules for every pass."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import shapes, shapes_with_loaded

from atom.swap.crossing import MOST_OUTGOING, Crossing, held_bytes
from atom.swap.pass_shares import (
    GRADIENTS,
    HOST,
    LINK,
    OPTIMIZER,
    VALUES,
    Wait,
    figures,
    waits,
    waits_s,
)
from atom.swap.schedule import (
    GRADIENT_SLOTS,
    Backward,
    Event,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    OptimizerStep,
    Shape,
    ValuesIn,
    ValuesOut,
    training_pass,
)
from atom.swap.timeline import Durations, Recording, Span, Timeline, group_pass, landed_s, simulate


def alike(sub_models: int, load: float, forward: float, backward: float, out: float) -> Durations:
    columns = (load, forward, backward, out)
    return Durations(*((seconds,) * sub_models for seconds in columns))


def times(timeline: Timeline) -> list[tuple[Event, float, float]]:
    return [(span.event, span.start_s, span.end_s) for span in timeline.spans]


def simulated(shape: Shape, durations: Durations) -> Timeline:
    return simulate(training_pass(shape), shape, durations)


# --- by hand ----------------------------------------------------------------------------------


def test_three_sub_models_by_hand() -> None:
    timeline = simulated(Shape(3, 1), alike(3, 2, 1, 2, 1))
    assert times(timeline) == [
        (Load(0, 0), 0, 2), (Forward(0, 0), 2, 3), (Load(1, 1), 2, 4), (Forward(1, 0), 4, 5),
        (Load(2, 0), 4, 6), (Forward(2, 0), 6, 7), (Backward(2, 0), 7, 9),
        (GradientOut(2), 9, 10), (Load(0, 0), 9, 11), (Backward(1, 0), 9, 12),
        (GradientOut(1), 12, 13), (Backward(0, 0), 12, 15), (GradientOut(0), 15, 16),
    ]  # fmt: skip
    assert timeline.seconds == 16
    assert timeline.computing == 11 / 16
    assert waits(timeline) == [
        Wait(0, LINK, 0, 2),
        Wait(1, LINK, 3, 4),
        Wait(2, LINK, 5, 6),
    ]


def test_a_backward_waits_for_its_gradient_slot() -> None:
    durations = alike(3, 2, 1, 2, 100)
    timeline = simulated(Shape(3, 1), durations)
    assert (Backward(0, 0), 109, 112) in times(timeline)
    assert waits(timeline)[-1] == Wait(0, GRADIENTS, 12, 109)


def test_a_load_waits_for_the_update_of_its_parameters() -> None:
    spans = (
        Span(OptimizerStep(0), 0, 2), Span(Load(0, 0), 2, 3), Span(OptimizerStep(1), 2, 6),
        Span(Forward(0, 0), 3, 4), Span(Load(1, 1), 6, 8), Span(Forward(1, 0), 8, 9),
    )  # fmt: skip
    assert waits(Timeline(spans)) == [
        Wait(0, OPTIMIZER, 0, 2),
        Wait(0, LINK, 2, 3),
        Wait(1, OPTIMIZER, 4, 6),
        Wait(1, LINK, 6, 8),
    ]


def test_the_next_gradients_leave_while_others_are_added() -> None:
    durations = replace(alike(3, 2, 1, 2, 1), sum_s=(4.0,) * 3)
    timeline = simulated(Shape(3, 1), durations)
    assert times(timeline)[-9:] == [
        (GradientOut(2), 9, 10), (Load(0, 0), 9, 11), (Backward(1, 0), 9, 12),
        (GradientSum(2), 10, 14), (GradientOut(1), 12, 13), (Backward(0, 0), 12, 15),
        (GradientSum(1), 14, 18), (GradientOut(0), 15, 16), (GradientSum(0), 18, 22),
    ]  # fmt: skip
    passes = [training_pass(Shape(3, 1))] * 2
    assert [landed_s(passes[:n], Shape(3, 1), durations) for n in (1, 2)] == [16, 37]
    more = [landed_s(passes[:n], Shape(3, 1), durations, (1.0, 2.0, 3.0)) for n in (1, 2)]
    assert more == [17, 43], "the work is done in the last pass, on added gradients"


def test_lanes_share_the_hosts_memory() -> None:
    """Each would take three quarters of it: while the addition does, the load has a quarter."""
    shape = Shape(1, 1)
    lanes = [Load(0, 0), Forward(0, 0), Backward(0, 0), GradientOut(0), Load(0, 0)]
    durations = replace(alike(1, 2, 1, 2, 1), sum_s=(4.0,), load_share=0.75, sum_share=0.75)
    at = times(simulate(lanes, shape, durations))
    assert at[-2:] == [(Load(0, 0), 5, 9), (GradientSum(0), 6, 10)]
    under = replace(durations, ready_s=(3.0,), step_share=1.0)
    assert times(simulate(lanes, shape, under))[0] == (Load(0, 0), 3, 5)


# --- several devices --------------------------------------------------------------------------


def test_a_group_of_two_by_hand() -> None:
    """Values take one second to the other device, gradients two."""
    shape = Shape(3, 2, crossings=(Crossing(0, (1,), 2, 4), Crossing(1, (2,), 2, 4)))
    durations = replace(alike(3, 2, 1, 2, 1), value_in_s=0.5, value_out_s=0.25)
    on = 0, 1, 0
    timeline = simulate(group_pass(shape, on), shape, durations, on)
    first, second = (times(timeline.of_device(device)) for device in (0, 1))
    assert first == [
        (Load(0, 0), 0, 2), (Forward(0, 0), 2, 3), (Load(2, 1), 2, 4), (Forward(0, 1), 3, 4),
        (Forward(2, 0), 6, 7), (Backward(2, 0), 7, 9), (Forward(2, 1), 9, 10),
        (Backward(2, 1), 10, 12), (GradientOut(2), 12, 13), (Backward(0, 0), 16, 19),
        (Backward(0, 1), 19, 22), (GradientOut(0), 22, 23),
    ]  # fmt: skip
    assert second == [
        (Load(1, 0), 0, 2), (Forward(1, 0), 4, 5), (Forward(1, 1), 5, 6),
        (Backward(1, 0), 11, 14), (Backward(1, 1), 14, 17), (GradientOut(1), 17, 18),
    ]  # fmt: skip
    assert (timeline.devices, timeline.seconds) == (2, 23)
    assert timeline.computing == (14 + 8) / 2 / 23
    assert waits_s(timeline)[VALUES] == (2 + 3 + 2 + 5) / 2


# --- rules for every pass ---------------------------------------------------------------------


@st.composite
def passes(draw: st.DrawFn) -> tuple[list[Event], Shape, Durations]:
    """Whole seconds, so that sums are exact."""
    shape, loaded = draw(shapes_with_loaded(most_sub_models=8))
    return training_pass(shape, loaded), shape, draw(durations_for(shape.sub_models))


@st.composite
def durations_for(draw: st.DrawFn, sub_models: int) -> Durations:
    seconds = st.integers(0, 20).map(float)
    column = st.lists(seconds, min_size=sub_models, max_size=sub_models).map(tuple)
    values = (draw(st.integers(0, 3).map(float)) for _ in range(2))
    return Durations(*(draw(column) for _ in range(4)), *values, sum_s=draw(column))


@settings(max_examples=60)
@given(passes())
def test_nothing_begins_before_what_it_needs_nor_later(
    case: tuple[list[Event], Shape, Durations],
) -> None:
    schedule, shape, durations = case
    timeline = simulate(schedule, shape, durations)
    outs = sum(isinstance(event, GradientOut) for event in schedule)
    assert len(timeline.spans) == len(schedule) + outs
    spans = {id(span.event): span for span in timeline.spans}
    sums = {s.event: s for s in timeline.spans if isinstance(s.event, GradientSum)}
    lane_end = {"load": 0.0, "compute": 0.0, "gradients": 0.0, "sums": 0.0}
    added = [0.0] * GRADIENT_SLOTS
    loaded, sent = dict[int, float](), dict[int, float]()
    back, out = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
    left, waited = list[float](), 0.0
    for event in schedule:
        span, s = spans[id(event)], event.sub_model
        needs = [lane_end[span.lane], waited]
        if isinstance(event, ValuesOut) and len(left) >= MOST_OUTGOING:
            waited = max(waited, left[-MOST_OUTGOING])
        if isinstance(event, ValuesIn):
            waited = max(waited, out[s, event.micro_batch])
        if isinstance(event, Load | GradientOut | ValuesIn | ValuesOut):
            needs += [lane_end["compute"], waited]
        else:
            needs.append(loaded.get(s, 0.0))
        if isinstance(event, Backward):
            needs.append(back.get((s, event.micro_batch), 0.0))
        if isinstance(event, Backward) and event.micro_batch == 0:
            slots = [t for t in sent if (t - s) % GRADIENT_SLOTS == 0]
            needs += [sent[t] for t in slots]
        if isinstance(event, GradientOut):
            needs.append(added[s % GRADIENT_SLOTS])
        assert span.start_s == max(needs)
        lane_end[span.lane] = span.end_s
        if isinstance(event, Load):
            loaded[s] = span.end_s
        if isinstance(event, GradientOut):
            sent[s], addition = span.end_s, sums[GradientSum(s)]
            assert addition.start_s == max(lane_end["sums"], span.end_s)
            added[s % GRADIENT_SLOTS] = lane_end["sums"] = addition.end_s
        if isinstance(event, ValuesOut):
            left.append(span.end_s)
            out[s, event.micro_batch] = span.end_s
        if isinstance(event, ValuesIn):
            back[s, event.micro_batch] = span.end_s


@settings(max_examples=60)
@given(passes(), st.integers(1, 4))
def test_a_group_waits_for_what_its_other_devices_make(
    case: tuple[list[Event], Shape, Durations], devices: int
) -> None:
    _, shape, durations = case
    shape = replace(shape, arrangement=replace(shape.arrangement, offloaded=frozenset()))
    on = tuple(s % devices for s in range(shape.sub_models))
    timeline = simulate(group_pass(shape, on), shape, durations, on)
    alone = simulate(training_pass(shape), shape, durations)
    spans = {(span.event, span.device): span for span in timeline.spans}
    computed = [span for span in timeline.spans if span.lane == "compute"]
    assert sum(each.seconds for each in computed) == alone.busy_s("compute")
    assert all(span.device == on[span.sub_model] for span in timeline.spans)
    byte_s = max(durations.value_in_s, durations.value_out_s)
    for each, c in product(shape.crossings, range(shape.micro_batches)):
        chain = each.made_by, *each.used_by
        for user in each.used_by:
            apart = on[user] != on[each.made_by]
            made = spans[Forward(each.made_by, c), on[each.made_by]]
            least_s = made.end_s + apart * each.value_bytes * byte_s
            assert spans[Forward(user, c), on[user]].start_s >= least_s
        for earlier, later in pairwise(chain):
            sent_s = (on[earlier] != on[later]) * each.gradient_bytes * byte_s
            made = spans[Backward(later, c), on[later]]
            if each.gradient_bytes or on[earlier] == on[later]:
                assert spans[Backward(earlier, c), on[earlier]].start_s >= made.end_s + sent_s
    if devices == 1:
        assert timeline == alone
    waited = waits_s(timeline)
    total = sum(waited.values()) + timeline.busy_s("compute")
    assert total == pytest.approx(timeline.seconds)
    assert waited[HOST] == 0


# --- recorded ---------------------------------------------------------------------------------


def test_a_recording_begins_with_its_first_span() -> None:
    recording = Recording()
    recording(Forward(0, 0), 0, 105.0, 107.0)
    recording(Load(0, 0), 0, 100.0, 104.0)
    timeline = recording.take()
    assert times(timeline) == [(Load(0, 0), 0, 4), (Forward(0, 0), 5, 7)]
    assert (timeline.spans[1].micro_batch, timeline.spans[0].micro_batch) == (0, None)
    assert waits(timeline) == [Wait(0, LINK, 0, 4), Wait(0, HOST, 4, 5)]
    assert recording.take() == Timeline(())
    assert Timeline(()).seconds == 0


def test_figures_are_shares_of_the_pass() -> None:
    at_work = {Load(0, 0): (0.0, 1.0), Forward(0, 0): (1.0, 9.0), GradientOut(0): (9.0, 10.0)}
    spans = tuple(Span(event, *times) for event, times in at_work.items())
    shown = figures(Timeline(spans))
    assert (shown["pass_seconds"], shown["computing"]) == (10.0, 0.8)
    assert {k: v for k, v in shown["waiting"].items() if v} == {"link": 0.1, "end": 0.1}
    assert figures(Timeline(()))["computing"] == 0.0


# --- memory of values between devices of a group ---


Held = tuple[int, float, float, set[tuple[int, int]]]
"""Bytes on a device, from when until when, and the sub-models and micro-batches that touch it."""


def held_on(device: int, on: tuple[int, ...], shape: Shape, pass_: Timeline) -> Iterator[Held]:
    """Yield the values on a device, following each crossing to its last use."""
    spans = {span.event: span for span in pass_.spans if span.device == on[span.sub_model]}
    for each in shape.crossings:
        users = [user for user in each.used_by if on[user] == device]
        for c in range(shape.micro_batches):
            made_s = spans[Forward(each.made_by, c)].end_s
            if users:
                at = {(s, c) for s in (each.made_by, *users)}
                yield each.value_bytes, made_s, spans[Backward(users[0], c)].end_s, at
            for earlier, later in pairwise((each.made_by, *each.used_by)):
                if on[earlier] == device:
                    since, until = (spans[Backward(s, c)].end_s for s in (later, earlier))
                    yield each.gradient_bytes, since, until, {(earlier, c), (later, c)}


def at_work(device: int, pass_: Timeline) -> list[Span]:
    return [span for span in pass_.lane("compute") if span.device == device]


@settings(max_examples=40)
@given(shapes(most_sub_models=8), st.integers(2, 4), st.data())
def test_no_device_holds_more_than_is_reckoned(
    shape: Shape, devices: int, data: st.DataObject
) -> None:
    """The assignment of sub-models to devices is random. A gradient comes back for each value."""
    stays = replace(shape.arrangement, offloaded=frozenset())
    trained = (replace(each, gradient_bytes=each.gradient_bytes + 1) for each in shape.crossings)
    shape = replace(shape, arrangement=stays, crossings=tuple(trained))
    drawn = [data.draw(st.integers(0, devices - 1)) for _ in range(shape.sub_models)]
    on = tuple(sorted(set(drawn)).index(each) for each in drawn)
    pass_ = simulate(group_pass(shape, on), shape, data.draw(durations_for(shape.sub_models)), on)
    for device in sorted(set(on)):
        sizes = shape.crossings, frozenset[int](), shape.sub_models, shape.micro_batches
        most = held_bytes(*sizes, on, device)
        held = list(held_on(device, on, shape, pass_))
        for span in at_work(device, pass_):
            own = span.sub_model, span.micro_batch
            now = sum(
                size
                for size, since, until, touched in held
                if since <= span.start_s < until and own not in touched
            )
            assert now <= most


def test_what_is_for_another_device_counts_until_the_next_visit() -> None:
    value, gradient = Crossing(0, (1,), 8, 0), Crossing(0, (1,), 0, 8)
    for device, crossing in enumerate((value, gradient)):
        assert held_bytes((crossing,), frozenset(), 2, 3, (0, 1), device) == 24
