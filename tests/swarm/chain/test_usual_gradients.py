"""What a chain allows one member to add to a mean."""

import pytest
from chain_samples import a_commit, beginning, heads_along

from atom.swarm.chain.usual_gradients import LARGEST_PART, NORMS_REMEMBERED, part_limit
from atom.swarm.identity import Identity

ANN = Identity.create()


def test_a_head_knows_the_norms_of_its_latest_rounds() -> None:
    head, commits = beginning(ANN), []
    assert head.norms == ()
    for _ in range(NORMS_REMEMBERED + 2):
        commits.append(a_commit(head, {ANN: 8}, [ANN]))
        head = head.after(commits[-1].value)
    norms = tuple(commit.value.gradient_norm for commit in commits)
    assert head.norms == norms[-NORMS_REMEMBERED:]
    assert heads_along(beginning(ANN), commits)[1].norms == norms[:1]


def test_a_beginning_allows_much_and_later_rounds_a_hundred_times_the_usual() -> None:
    assert part_limit((), 32).in_mean == part_limit((2.0,) * 3, 32).in_mean == 1e6
    assert part_limit((2.0,) * 4, 32).in_mean == 200.0
    assert part_limit((9.0, 1.0, 2.0, 3.0, 2.0), 32).in_mean == 200.0


def test_one_round_of_a_liar_changes_nothing() -> None:
    usual = tuple(1.0 + 0.01 * number for number in range(NORMS_REMEMBERED))
    spoilt = (*usual[1:], 1e30)
    assert part_limit(spoilt, 32).in_mean == pytest.approx(part_limit(usual, 32).in_mean, rel=0.02)


def test_rounds_of_nothing_say_nothing() -> None:
    assert part_limit((0.0,) * NORMS_REMEMBERED, 32) == part_limit((), 32)
    assert part_limit((0.0,) * 12 + (3.0,) * 4, 32).in_mean == 300.0


def test_however_large_the_norms_second_moments_stay_finite() -> None:
    worst = part_limit((1e300,) * 4, 32)
    assert (1000 * 300 * worst.in_mean) ** 2 < 3.4e38
    assert worst.of(2**60) <= LARGEST_PART
    assert part_limit((1e-300,) * 4, 32).in_mean > 0.0


def test_what_is_within_our_own_limit_is_within_the_rings() -> None:
    limit = part_limit((1.0,) * 4, 32)
    assert limit.of(1) == limit.of(32) == 3200.0
    assert limit.of(40) == 4000.0 <= limit.of(40 + 7)
