from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedules import shapes, shapes_with_loaded

from atom.swap.crossing import Crossing
from atom.swap.schedule import (
    GRADIENT_SLOTS,
    Arrangement,
    Backward,
    Event,
    Forward,
    GradientOut,
    Load,
    Shape,
    ValuesIn,
    ValuesOut,
    device_of,
    evaluation_pass,
    training_pass,
)
from tests.swap.schedule_check import ScheduleError, check


@given(shapes_with_loaded())
def test_every_pass_keeps_the_invariants(case: tuple[Shape, frozenset[int]]) -> None:
    """No load is done later than it can be: each precedes the visit before the one it is for."""
    shape, loaded = case
    events = training_pass(shape, loaded)
    check(events, shape, loaded)
    check(evaluation_pass(shape, loaded), shape, loaded, training=False)
    cold = training_pass(shape)
    for s in range(1, shape.sub_models):
        assert cold.index(Load(s, shape.slot_of(s))) < cold.index(Forward(s - 1, 0))


@given(shapes())
def test_what_fits_stays(shape: Shape) -> None:
    """Cold: every load forward, and backward all swapped but the last `slots`. Warm: no resident,
    and of the swapped neither the last nor the first."""
    slots, resident = shape.arrangement.slots, shape.arrangement.resident
    swapped = [s for s in range(shape.sub_models) if s not in resident]
    assert [shape.slot_of(s) for s in swapped] == [n % slots for n in range(len(swapped))]
    own = [shape.slot_of(s) for s in sorted(resident)]
    assert own == list(range(slots, slots + len(resident))), "each resident has its own slot"
    fitting = min(slots, len(swapped))
    cold = training_pass(shape)
    assert count_loads(cold) == shape.sub_models + len(swapped) - fitting
    at_end = check(cold, shape)
    assert at_end == resident | frozenset(swapped[:fitting])
    warm = training_pass(shape, at_end)
    assert count_loads(warm) == 2 * (len(swapped) - fitting)
    assert check(warm, shape, at_end) == at_end


@settings(max_examples=40)
@given(shapes(), st.data())
def test_devices_of_a_group_visit_in_the_order_of_the_whole_pass(
    shape: Shape, data: st.DataObject
) -> None:
    """One order for all devices prevents that two of them wait for each other."""
    plain = replace(shape.arrangement, offloaded=frozenset())
    places = st.lists(st.integers(0, 3), min_size=shape.sub_models, max_size=shape.sub_models)
    owners = data.draw(places)
    for owner in set(owners):
        mine = tuple(s for s, place in enumerate(owners) if place == owner)
        own = replace(shape, arrangement=plain, visited=mine)
        for make, training in ((training_pass, True), (evaluation_pass, False)):
            events = make(own)
            check(events, own, training=training)
            whole = without_loads(make(replace(own, visited=None)))
            assert without_loads(events) == [e for e in whole if e.sub_model in mine]


def without_loads(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Load)]


def test_sub_models_that_share_parameters_are_on_one_device() -> None:
    apart = [{f"w{n}": 8} for n in range(7)]
    assert device_of(apart, 3) == (0, 1, 2, 0, 1, 2, 0)
    tied = [{"table": 16}, *apart[:5], {"table": 16, "norm": 1}]
    assert device_of(tied, 3) == (0, 1, 2, 1, 2, 0, 0)
    joining = [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "b": 1}, {"b": 1}]
    assert device_of(joining, 2) == (0, 0, 1, 0, 0)


def test_a_device_with_less_to_load_has_its_turn_sooner() -> None:
    assert device_of([{"a": 3}, {"b": 1}, {"c": 1}, {"d": 1}, {"e": 3}], 2) == (0, 1, 1, 1, 0)
    assert device_of([{"a": 9}, {"b": 8}, {"c": 8}, {"d": 9}], 2) == (0, 1, 0, 1), "nearly alike"


def count_loads(events: Sequence[Event]) -> int:
    return sum(isinstance(event, Load) for event in events)


@settings(max_examples=40)
@given(shapes_with_loaded(), st.data())
def test_the_check_finds_damage(case: tuple[Shape, frozenset[int]], data: st.DataObject) -> None:
    """An event is missing, done twice, or done after a later event of the same kind."""
    shape, loaded = case
    events = training_pass(shape, loaded)
    place = data.draw(st.integers(0, len(events) - 1))
    event = events.pop(place)
    match data.draw(st.sampled_from(["missing", "twice", "late"])):
        case "twice":
            events[place:place] = [event, event]
        case "late":
            events.append(event)
            in_time = isinstance(event, GradientOut) and event.sub_model < GRADIENT_SLOTS
            assume(place < len(events) - 1 and not in_time)
    with pytest.raises(ScheduleError):
        check(events, shape, loaded)


OFFLOADED = Shape(
    6,
    2,
    Arrangement(2, offloaded=frozenset(range(6)), least_offloaded_bytes=0),
    (*(Crossing(s, (s + 1,), 8, 8) for s in range(5)), Crossing(0, (1, 3), 8, 8)),
)


def test_values_leave_behind_their_last_user_and_come_back_a_visit_ahead() -> None:
    events = [e for e in training_pass(OFFLOADED) if not isinstance(e, Load | GradientOut)]
    there = [(e.sub_model, e.micro_batch) for e in events if isinstance(e, ValuesOut)]
    assert there == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert OFFLOADED.offloads == ((), (0,), (1,), (2, 5), (), ()), "the others are needed too soon"
    back = [event for event in events if isinstance(event, ValuesIn)]
    assert [(e.sub_model, e.micro_batch) for e in back] == [
        (3, 0), (3, 1), (2, 0), (2, 1), (1, 0), (1, 1)
    ]  # fmt: skip
    for event in back:
        following = events[events.index(event) + 1]
        assert following == Backward(event.sub_model + 1, event.micro_batch)


@pytest.mark.parametrize(
    "numbers", [(0, 1), (1, 0), (2, 1, frozenset({2})), (2, 1, frozenset({-1}))]
)
def test_impossible_shapes_are_refused(numbers) -> None:  # type: ignore[no-untyped-def]
    sub_models, micro_batches, *resident = numbers
    with pytest.raises(ValueError, match="no schedule"):
        Shape(sub_models, micro_batches, Arrangement(2, *resident))


def test_impossible_arrangements_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Arrangement(1)
    with pytest.raises(ValueError, match="not resident"):
        Arrangement(2, frozenset({1}), frozenset({2}))
