"""Ring or one-shot: by what each would take, and never against what makes one impossible."""

import pytest

from atom.swarm.exchange.algorithm import MAX_MEMBERS, Algorithm, Ways, choose

FAR, NEAR = Ways(0.05, 12.5e6), Ways(0.0001, 1.25e8)


def test_small_averages_on_long_ways_go_directly() -> None:
    choice = choose(8, 1e6, FAR)
    assert choice.algorithm is Algorithm.ONE_SHOT
    assert choice.one_shot_s < choice.ring_s / 2
    assert choice.story()["reason"] == "latency is most of a ring's time"


@pytest.mark.parametrize("ways", [FAR, Ways()])
def test_large_averages_go_round(ways: Ways) -> None:
    choice = choose(8, 1e9, ways)
    assert choice.algorithm is Algorithm.RING
    assert choice.one_shot_s > 0.9 * choice.ring_s


def test_on_a_local_network_connections_cost_more_than_hops() -> None:
    assert choose(8, 1e6, NEAR).algorithm is Algorithm.RING


def test_what_nobody_has_measured_is_assumed() -> None:
    assert choose(8, 1e5, Ways()) == choose(8, 1e5, Ways(0.0005, 12.5e6))


@pytest.mark.parametrize(
    ("members", "ways", "why"),
    [
        (1, FAR, "either way"),
        (2, FAR, "either way"),
        (MAX_MEMBERS + 1, FAR, "more than 16"),
        (4, Ways(0.05, 12.5e6, all_meet=False), "relay"),
    ],
)
def test_what_speaks_against_it(members: int, ways: Ways, why: str) -> None:
    choice = choose(members, 1000.0, ways)
    assert choice.algorithm is Algorithm.RING
    assert why in choice.reason
