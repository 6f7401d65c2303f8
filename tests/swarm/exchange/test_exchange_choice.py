"""Choice of the exchange, and of the size of the parts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.swarm.exchange.choice import (
    MOST_MEMBERS,
    choose,
    line_rates,
    part_shares,
)

RATES = st.lists(st.floats(1e4, 1e9), min_size=3, max_size=16)
LARGE = 100e6


def seconds(shares: tuple[float, ...], rates: list[float]) -> float:
    """Return the time of the busiest line for an average of one byte."""
    whole = sum(shares)
    count = len(shares)
    return max(
        (1 + (count - 2) * share / whole) / rate for share, rate in zip(shares, rates, strict=True)
    )


@given(RATES, st.data())
def test_part_shares_no_others_are_faster(rates: list[float], data: st.DataObject) -> None:
    shares = part_shares(rates, [True] * len(rates))
    assert any(shares)
    others = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(rates), max_size=len(rates)))
    rounding = 1 + len(rates) ** 2 / 1000
    assert seconds(shares, rates) <= seconds(tuple(others), rates) * rounding


@pytest.mark.parametrize(
    ("rates", "may_own", "shares"),
    [
        ([5.0, 5.0], [True, False], (1, 0)),
        ([4.0, 4.0, 2.0, 1.0], [True] * 4, (429, 429, 143, 0)),
        ([4.0, 4.0, 4.0], [False, True, False], (0, 1000, 0)),
        ([1e9] * MOST_MEMBERS, [True] * MOST_MEMBERS, (16,) * MOST_MEMBERS),
        ([1e9] * MOST_MEMBERS, [False] * 63 + [True], (0,) * 63 + (1000,)),
    ],
)  # fmt: skip
def test_part_shares_follow_the_lines(
    rates: list[float], may_own: list[bool], shares: tuple[int, ...]
) -> None:
    assert part_shares(rates, may_own) == shares


@pytest.mark.parametrize(
    ("lines", "terms", "shares"),
    [
        ([None] * 4, {}, ()),
        ([1e7] * 4, {"latency_s": 0.001}, ()),
        ([3e7] * 8, {"latency_s": 0.15}, (125,) * 8),
        ([None, None, None, 1e6], {}, (333, 333, 333, 0)),
        ([None] * 3, {"may_own": [True, True, False]}, (500, 500, 0)),
        ([None] * 2, {"may_own": [True, False]}, (1, 0)),
        ([1e6, None], {"latency_s": 0.15}, ()),
        ([None], {"ring_possible": False}, ()),
        ([None] * 3, {"ring_possible": False}, (333, 333, 333)),
    ],
)
def test_choose_parts_where_they_save_time_or_a_ring_cannot_be(
    lines: list[float | None], terms: dict[str, Any], shares: tuple[int, ...]
) -> None:
    choice = choose(lines, **{"may_own": [True] * len(lines), "average_bytes": LARGE} | terms)
    assert choice.shares == shares, choice


@pytest.mark.parametrize(
    ("members", "latency_s", "ring_s"),
    [(8, 0.02, 518), (64, 0.0005, 583), (64, 0.02, 703), (64, 0.05, 1538)],
)
def test_a_ring_waits_for_the_latency_in_each_bucket(
    members: int, latency_s: float, ring_s: float
) -> None:
    """The round trips of few members are hidden behind the bytes; those of many are not."""
    lines, may_own = [12.5e6] * members, [True] * members
    choice = choose(lines, may_own, average_bytes=3.7e9, latency_s=latency_s)
    assert round(choice.ring_s) == ring_s
    assert bool(choice.shares) == (choice.ring_s > 600)


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({"AB": 1.0}, {}),
        ({"AB": 1.0, "AC": 2.0}, {"A": 2.0}),
        ({"AC": 1.0, "BC": 1.5}, {"C": 1.5}),
        ({"AB": 1.0, "CB": 1.0, "AD": 1.0}, {"A": 1.0, "B": 1.0}),
        ({"AB": 1.0, "BC": 1.1, "CD": 0.9, "DA": 1.0}, {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.9}),
        ({"AB": 1.0, "AC": 1.1, "BA": 50.0, "CA": 60.0}, {"A": 1.1}),
        ({"XA": 1.0, "AB": 1.0, "BC": 1.0, "CY": 1.0}, {"A": 1.0, "B": 1.0, "C": 1.0}),
        ({"AB": 1.0, "CB": 1.0, "AD": 5.0, "AC": 5.0}, {"B": 1.0, "A": 5.0}),
    ],
)
def test_line_rates_are_of_lines_that_explain_several_slow_ways(
    ways: dict[str, float], found: dict[str, float]
) -> None:
    assert line_rates({(way[0], way[1]): rate for way, rate in ways.items()}) == found
