"""The search for the largest loss scale that does not overflow."""

from hypothesis import given
from hypothesis import strategies as st

from atom.training.replica.caution import GROWTH_PASSES, LEAST_EXPONENT, MOST_EXPONENT, LossScale


def grown(scale: LossScale) -> LossScale:
    for _ in range(GROWTH_PASSES):
        assert scale.at_round_start() == scale
        scale = scale.after_sound()
    return scale.at_round_start()


def test_it_doubles_after_enough_sound_passes_in_a_row() -> None:
    scale = LossScale()
    assert grown(scale) == LossScale(scale.exponent + 1)
    half_way = LossScale(10, GROWTH_PASSES - 1)
    assert half_way.after_overflow() == LossScale(9), "the count begins anew"


def test_it_grows_at_the_beginning_of_a_round_only() -> None:
    scale = LossScale(10, GROWTH_PASSES)
    assert scale.after_sound().value == 2.0**10
    assert scale.at_round_start().value == 2.0**11


def test_its_bounds() -> None:
    assert LossScale(LEAST_EXPONENT).after_overflow() == LossScale(LEAST_EXPONENT)
    assert grown(LossScale(MOST_EXPONENT)) == LossScale(MOST_EXPONENT)


@given(st.integers(LEAST_EXPONENT, MOST_EXPONENT), st.integers(10, 40))
def test_it_settles_right_below_what_overflows(first_that_overflows: int, rounds: int) -> None:
    """In the end one pass in GROWTH_PASSES + 1 is void, as long as there is a scale that works."""
    scale, voided = LossScale(), 0
    for _ in range(rounds):
        scale = scale.at_round_start()
        while scale.exponent > max(first_that_overflows - 1, LEAST_EXPONENT):
            scale, voided = scale.after_overflow(), voided + 1
        scale = LossScale(scale.exponent, GROWTH_PASSES)
    wanted = max(first_that_overflows - 1, LEAST_EXPONENT)
    assert scale.exponent == min(wanted, MOST_EXPONENT)
    assert voided <= abs(LossScale().exponent - wanted) + rounds
