"""Steps are the schedule, told shorter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.daemon.load_hiding import HidingTokens, Rates, hiding_tokens
from atom.daemon.pass_steps import PassStep, pass_steps
from atom.swap.arrangement import Arrangement
from atom.swap.schedule import GradientOut, Load, Shape, evaluation_pass, training_pass
from atom.swap.schedule_check import check


def test_a_small_pass_step_by_step() -> None:
    steps = pass_steps(training_pass(Shape(3, 2)), Shape(3, 2))
    told = [(s.sub_model, s.forward, s.backward, s.loads, s.waits, s.slots) for s in steps]
    assert told == [
        (0, True, False, (0, 1), True, (0, 1)),
        (1, True, False, (2,), False, (2, 1)),
        (2, True, True, (), False, (2, 1)),
        (1, False, True, (0,), False, (0, 1)),
        (0, False, True, (), False, (0, 1)),
    ]
    assert [s.gradient_out for s in steps] == [False, False, True, True, True]
    assert {s.micro_batches for s in steps} == {2}


@given(st.integers(1, 9), st.integers(1, 4), st.integers(2, 4))
def test_no_load_and_no_gradient_is_lost(sub_models: int, micro_batches: int, slots: int) -> None:
    shape = Shape(sub_models, micro_batches, Arrangement(slots))
    first = training_pass(shape)
    left = check(first, shape)
    for resident, schedule in (((), first), (left, training_pass(shape, left))):
        steps = pass_steps(schedule, shape, resident)
        loads = [event.sub_model for event in schedule if isinstance(event, Load)]
        assert [sub_model for step in steps for sub_model in step.loads] == loads
        out = [event.sub_model for event in schedule if isinstance(event, GradientOut)]
        assert [step.sub_model for step in steps if step.gradient_out] == out
        assert len(steps) == 2 * sub_models - 1
        assert all(step.sub_model in step.slots for step in steps)


def test_an_evaluation_has_no_backward() -> None:
    steps = pass_steps(evaluation_pass(Shape(4, 3)), Shape(4, 3))
    assert [(s.sub_model, s.forward, s.backward) for s in steps] == [
        (index, True, False) for index in range(4)
    ]


def test_tokens_that_hide_loads_by_hand() -> None:
    steps = pass_steps(training_pass(Shape(3, 1)), Shape(3, 1))
    # Loads 1, 2 and 0 hide behind forward 0 and 1 and backward 1; a byte takes 4 flops' time.
    hiding = hiding_tokens(steps, [100, 200, 300], [2.0, 10.0, 50.0], Rates(1e9, 4e9))
    flops = 2 + 10 + 3 * 50 + 3 * 10 + 3 * 2
    assert hiding == HidingTokens(math.ceil(600 / flops * 4), 200 // 2 * 4)


def test_a_step_without_work_hides_nothing() -> None:
    steps = pass_steps(training_pass(Shape(3, 1)), Shape(3, 1))
    hiding = hiding_tokens(steps, [1, 1, 1], [0.0, 1.0, 1.0], Rates(1.0, 1.0))
    assert hiding.one_by_one is None
    assert hiding.in_sum > 0


@pytest.mark.parametrize("flops", [0.0, 5.0])
def test_one_sub_model_has_nothing_to_hide(flops: float) -> None:
    steps: list[PassStep] = pass_steps(training_pass(Shape(1, 4)), Shape(1, 4))
    assert hiding_tokens(steps, [9], [flops], Rates(1.0, 1.0)) == HidingTokens(0, 0)
