"""What void and sound passes teach, without passes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom.swap.voided import Cause, PassVoided
from atom.training.replica.passes import (
    FIRST_EXPONENT,
    GROWTH_PASSES,
    LEAST_EXPONENT,
    MOST_EXPONENT,
    PassLimits,
)

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
    assert half_way.after_void(OVERFLOW, 8)[0] == PassLimits(8, 9), "the count begins anew"


@pytest.mark.parametrize("exponent", [FIRST_EXPONENT, MOST_EXPONENT])
def test_the_scale_doubles_at_a_round_s_start_after_enough_sound_passes(exponent: int) -> None:
    expected = min(exponent + 1, MOST_EXPONENT)
    assert grown(PassLimits(8, exponent)) == PassLimits(8, expected)


@given(st.integers(LEAST_EXPONENT, MOST_EXPONENT), st.integers(10, 40))
def test_the_scale_settles_right_below_what_overflows(first_too_large: int, rounds: int) -> None:
    """In the end one pass in GROWTH_PASSES + 1 is void, as long as there is a scale that works."""
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
