"""Which exchange is chosen, and how large the parts are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.swarm.exchange.choice import (
    MOST_MEMBERS,
    MOST_OWNERS,
    Line,
    averages_moved,
    choose,
    line_rates,
    part_shares,
)

RATES = st.lists(st.floats(1e4, 1e9), min_size=3, max_size=MOST_OWNERS)
LARGE = 100e6


def seconds(shares: tuple[float, ...], rates: list[float]) -> float:
    """For one byte: the busiest line."""
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
        ([5.0, 5.0], [True, True], (1, 1)),
        ([5.0, 5.0], [True, False], (1, 0)),
        ([5.0, 5.0, 5.0, 5.0], [True] * 4, (250, 250, 250, 250)),
        ([4.0, 4.0, 4.0, 1.0], [True] * 4, (333, 333, 333, 0)),
        ([4.0, 4.0, 2.0, 1.0], [True] * 4, (429, 429, 143, 0)),
        ([4.0, 4.0, 4.0], [False, True, False], (0, 1000, 0)),
    ],
)
def test_part_shares_follow_the_lines(
    rates: list[float], may_own: list[bool], shares: tuple[int, ...]
) -> None:
    assert part_shares(rates, may_own) == shares


def test_part_shares_are_of_at_most_so_many_owners() -> None:
    shares = part_shares([1.0 + rank for rank in range(MOST_MEMBERS)], [True] * MOST_MEMBERS)
    assert sum(share > 0 for share in shares) <= MOST_OWNERS
    assert not any(shares[: MOST_MEMBERS - MOST_OWNERS]), "the fastest lines"


def test_averages_moved_are_a_rings_where_parts_are_equal() -> None:
    assert averages_moved((1, 1, 1, 1), 2) == 2 * 3 / 4
    assert averages_moved((1, 1, 1, 0), 3) == 1


@pytest.mark.parametrize(
    ("lines", "latency_s", "by_parts"),
    [
        ([Line()] * 4, None, False),
        ([Line(1e7)] * 4, 0.001, False),
        ([Line(3e7)] * 8, 0.15, True),
        ([Line(), Line(), Line(), Line(1e6)], None, True),
        ([Line(), Line(), Line(may_own=False)], None, True),
        ([Line(), Line(may_own=False)], None, True),
        ([Line(1e6), Line()], 0.15, False),
        ([Line()], None, False),
        ([Line()] * (MOST_MEMBERS + 1), 0.2, False),
    ],
)
def test_choose_parts_where_they_save_time_or_a_ring_cannot_be(
    lines: list[Line], latency_s: float | None, by_parts: bool
) -> None:
    choice = choose(lines, LARGE, latency_s)
    assert bool(choice.shares) is by_parts, choice
    assert len(choice.shares) in (0, len(lines))
    assert all(line.may_own or not share for line, share in zip(lines, choice.shares, strict=False))


def test_choose_parts_where_no_ring_is_possible() -> None:
    assert choose([Line()] * 3, LARGE, ring_possible=False).shares == (333, 333, 333)
    assert choose([Line()], LARGE, ring_possible=False).shares == ()


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({}, {}),
        ({("A", "B"): 1.0}, {}),
        ({("A", "B"): 1.0, ("A", "C"): 2.0}, {"A": 2.0}),
        ({("A", "C"): 1.0, ("B", "C"): 1.5}, {"C": 1.5}),
        ({("A", "B"): 1.0, ("C", "B"): 1.0, ("A", "D"): 1.0}, {"B": 1.0}),
        ({("A", "B"): 1.0, ("C", "B"): 1.0, ("A", "D"): 5.0, ("A", "C"): 5.0},
         {"B": 1.0, "A": 5.0}),
    ],
)  # fmt: skip
def test_line_rates_are_of_lines_that_explain_several_slow_ways(
    ways: dict[tuple[str, str], float], found: dict[str, float]
) -> None:
    assert line_rates(ways) == found
