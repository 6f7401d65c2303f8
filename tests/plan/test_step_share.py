"""The device's share of the optimizer's step, chosen from rates."""

import random
from dataclasses import replace

import pytest
from small_chains import MACHINE, layer_ends, random_chain

from atom.plan.choice import Choice, Limits, choose
from atom.plan.step_share import WORTH, choose_share, share_of
from atom.swap.step_rates import StepRates


def chosen(seed: int) -> Choice:
    pick = random.Random(seed)
    chain = random_chain(pick)
    return choose(chain, MACHINE, Limits(200_000, 4, 4), layer_ends(chain, pick))


def parameters_of(choice: Choice) -> float:
    return float(sum(piece.elements for piece in choice.pieces))


def rates(choice: Choice, host_s: float, link_s: float = 1e-9, device_s: float = 1e-9) -> StepRates:
    """By what a whole step takes on each."""
    all_of_it = parameters_of(choice)
    host = all_of_it / host_s
    return StepRates(host, host, all_of_it / link_s, all_of_it / device_s)


def test_a_step_takes_as_long_as_the_slower_side() -> None:
    measured = StepRates(host=10.0, host_beside=8.0, link=4.0, device=5.0)
    assert measured.seconds(40, 0.0) == 4.0
    assert measured.seconds(40, 0.2) == pytest.approx(40 * 0.8 / 8)
    assert measured.seconds(40, 0.5) == pytest.approx(40 * 0.5 / 4)


@pytest.mark.parametrize("seed", range(8))
def test_a_step_that_hides_under_the_pass_stays_with_the_host(seed: int) -> None:
    choice = chosen(seed)
    hidden = choose_share(choice, parameters_of(choice), rates(choice, 1e-9))
    assert hidden.share == 0.0
    assert hidden.pass_s == hidden.pass_by_host_s == pytest.approx(choice.timeline.seconds)


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_host_shares_with_a_fast_device(seed: int) -> None:
    choice = chosen(seed)
    step_s = 20 * choice.timeline.seconds
    found = choose_share(choice, parameters_of(choice), rates(choice, step_s))
    assert found.share >= 0.9
    assert found.pass_s <= (1 - WORTH) * found.pass_by_host_s
    equal = rates(choice, step_s, step_s, step_s)
    assert choose_share(choice, parameters_of(choice), equal).share == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slow", ["link", "device"])
def test_what_the_pass_needs_itself_is_not_given_away(seed: int, slow: str) -> None:
    choice = chosen(seed)
    step_s = 3 * choice.timeline.seconds
    slower = replace(rates(choice, step_s), **{slow: parameters_of(choice) / (50 * step_s)})
    assert choose_share(choice, parameters_of(choice), slower).share <= 1 / 32


@pytest.mark.parametrize("seed", range(4))
def test_no_other_share_has_a_much_shorter_pass(seed: int) -> None:
    choice, pick = chosen(seed), random.Random(seed)
    step_s = [choice.timeline.seconds * pick.uniform(0.1, 5) for _ in range(3)]
    measured = rates(choice, *step_s)
    found = choose_share(choice, parameters_of(choice), measured)
    for percent in range(0, 101):
        other = share_of(choice, parameters_of(choice), measured, percent / 100)
        assert found.pass_s <= other.pass_s * (1 + 2 * WORTH) + step_s[0] / 32
