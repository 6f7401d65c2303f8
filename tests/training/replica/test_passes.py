"""Effect of void and sound passes on later ones, without passes; validation, and shown figures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom.swap.schedule import Backward, Forward, GradientOut, Load, OptimizerStep
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.passes import (
    FIRST_EXPONENT,
    GROWTH_PASSES,
    LEAST_EXPONENT,
    LOOK_S,
    MOST_EXPONENT,
    PassLimits,
    PassWatch,
)
from tests.manual_clock import ManualClock

OVERFLOW = PassVoided(Cause.GRADIENTS, "though the loss is finite")


def grown(limits: PassLimits) -> PassLimits:
    for _ in range(GROWTH_PASSES):
        assert limits.at_round_start() == limits
        limits = limits.after_sound()
    return limits.at_round_start()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_only_float16_has_a_loss_scale(precision: torch.dtype) -> None:
    limits = PassLimits.first(precision, 8)
    after, hint = limits.after_void(OVERFLOW, 8)
    assert "diverged" in hint
    assert after == limits == grown(limits).at_round_start().first(precision, 8)
    assert limits.loss_scale == 1.0


def test_an_overflow_halves_the_scale_and_a_bad_loss_does_not() -> None:
    first = limits = PassLimits.first(torch.float16, 8)
    assert limits.after_void(PassVoided(Cause.LOSS, "nan in micro-batch 0"), 8)[0] == first
    for _ in range(FIRST_EXPONENT):
        limits = limits.after_void(OVERFLOW, 8)[0]
    assert limits.loss_scale == 1.0
    assert "needs bfloat16" in limits.after_void(OVERFLOW, 8)[1]
    half_way = PassLimits(8, 10, GROWTH_PASSES - 1)
    assert half_way.after_void(OVERFLOW, 8)[0] == PassLimits(8, 9), "the count restarts"


@given(st.integers(LEAST_EXPONENT, MOST_EXPONENT), st.integers(10, 40))
def test_the_scale_settles_right_below_what_overflows(first_too_large: int, rounds: int) -> None:
    """One pass in GROWTH_PASSES + 1 is void in the end, as long as some scale works."""
    wanted = max(first_too_large - 1, LEAST_EXPONENT)
    exponent, voided = FIRST_EXPONENT, 0
    for _ in range(rounds):
        limits = PassLimits(8, exponent, GROWTH_PASSES).at_round_start()
        while limits.loss_scale > 2.0**wanted:
            limits, voided = limits.after_void(OVERFLOW, 8)[0], voided + 1
        assert limits.exponent is not None
        exponent = limits.exponent
    assert exponent == wanted
    assert voided <= abs(FIRST_EXPONENT - wanted) + rounds


# ---- which passes are looked at


def watched(watch: PassWatch, at_s: float = 0.0, sound: bool = True) -> bool:
    """One pass of 4 s; was it recorded?"""
    observer = watch.begin()
    events = [Load(0, 0), Forward(0, 0), Backward(0, 0), GradientOut(0)]
    if observer is not None:
        for start_s, event in enumerate(events):
            observer(event, 0, at_s + start_s, at_s + start_s + 1)
    if sound:
        watch.end()
    return observer is not None


def test_one_pass_now_and_then_is_recorded() -> None:
    clock = ManualClock()
    watch = PassWatch(clock)
    assert watch.figures() is None
    for _ in range(2):
        assert [watched(watch) for _ in range(3)] == [True, False, False]
        clock.advance(LOOK_S)
    figures = watch.figures()
    assert figures is not None
    assert (figures["pass_seconds"], figures["computing"]) == (4.0, 0.5)


def test_the_optimizers_work_under_a_pass_is_part_of_it() -> None:
    watch = PassWatch(ManualClock())
    watch.stepped(OptimizerStep(0), 0, 0.0, 5.0)
    watch.stepped(OptimizerStep(1), 0, 9.0, 10.5)
    watched(watch, at_s=10.0)
    assert watch._latest is not None
    steps = watch._latest.lane("optimizer")
    assert [(span.sub_model, span.start_s) for span in steps] == [(1, 0.0)]
