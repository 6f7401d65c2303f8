import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.swap.schedule import (
    Backward,
    Drop,
    Forward,
    GradientOut,
    Load,
    ScheduleError,
    Shape,
    check,
    evaluation_pass,
    loaded_elements,
    training_pass,
)

shapes = st.builds(
    Shape,
    sub_models=st.integers(1, 12),
    micro_batches=st.integers(1, 5),
    slots=st.integers(2, 6),
)


@st.composite
def shapes_with_residents(draw: st.DrawFn) -> tuple[Shape, frozenset[int]]:
    """A shape, and sub-models that may be in their slots: at most one per slot."""
    shape = draw(shapes)
    held = draw(st.sets(st.integers(0, shape.sub_models - 1)))
    return shape, frozenset({shape.slot_of(s): s for s in held}.values())


@given(shapes_with_residents())
def test_every_pass_keeps_the_invariants(case: tuple[Shape, frozenset[int]]) -> None:
    shape, resident = case
    check(training_pass(shape, resident), shape, resident)
    check(evaluation_pass(shape, resident), shape, resident, training=False)


@given(shapes_with_residents())
def test_counts_per_pass(case: tuple[Shape, frozenset[int]]) -> None:
    shape, resident = case
    events = training_pass(shape, resident)
    for s in range(shape.sub_models):
        for c in range(shape.micro_batches):
            assert events.count(Forward(s, c)) == 1
            assert events.count(Backward(s, c)) == 1
        assert events.count(GradientOut(s)) == 1


@given(shapes_with_residents(), st.integers(1, 9))
def test_traffic_does_not_depend_on_the_micro_batches(
    case: tuple[Shape, frozenset[int]], micro_batches: int
) -> None:
    shape, resident = case
    other = Shape(shape.sub_models, micro_batches, shape.slots)
    sizes = [10**s for s in range(shape.sub_models)]
    moved = loaded_elements(training_pass(shape, resident), sizes)
    assert moved == loaded_elements(training_pass(other, resident), sizes)


@given(shapes)
def test_what_fits_stays(shape: Shape) -> None:
    """Cold: S loads forward, and backward all but the last `slots`. Warm: the first stay too."""
    kept = min(shape.slots, shape.sub_models)
    cold = training_pass(shape)
    assert sum(isinstance(e, Load) for e in cold) == 2 * shape.sub_models - kept
    at_end = check(cold, shape)
    assert at_end == frozenset(range(kept))
    warm = training_pass(shape, at_end)
    assert sum(isinstance(e, Load) for e in warm) == 2 * (shape.sub_models - kept)


@given(shapes)
def test_the_next_sub_model_is_loaded_before_this_one_computes(shape: Shape) -> None:
    events = training_pass(shape)
    for s in range(1, shape.sub_models):
        assert events.index(Load(s, shape.slot_of(s))) < events.index(Forward(s - 1, 0))


def test_three_sub_models_two_slots_as_written() -> None:
    assert training_pass(Shape(3, 1)) == [
        Load(0, 0), Load(1, 1), Forward(0, 0),
        Drop(0, 0), Load(2, 0), Forward(1, 0),
        Forward(2, 0), Backward(2, 0), GradientOut(2),
        Drop(2, 0), Load(0, 0), Backward(1, 0), GradientOut(1),
        Backward(0, 0), GradientOut(0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda events: events.remove(Load(1, 1)), "it is in no slot"),
        (lambda events: events.remove(Drop(0, 0)), "the slot is in use"),
        (lambda events: events.remove(Backward(1, 0)), "out of order|a backward is missing"),
        (lambda events: events.remove(GradientOut(0)), "a gradient stayed behind"),
        (lambda events: events.insert(0, events.pop(2)), "it is in no slot"),
        (lambda events: events.append(Forward(0, 0)), "forward out of order"),
        (lambda events: events.insert(6, GradientOut(2)), "a backward is missing"),
    ],
)
def test_the_check_finds_damage(damage, complaint) -> None:  # type: ignore[no-untyped-def]
    events = training_pass(Shape(3, 1))
    damage(events)
    with pytest.raises(ScheduleError, match=complaint):
        check(events, Shape(3, 1))


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 0, 2), (1, 1, 1)])
def test_impossible_shapes_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no schedule"):
        Shape(*numbers)
