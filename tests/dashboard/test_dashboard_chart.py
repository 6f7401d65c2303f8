"""Losses as seen, thinned and drawn."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.dashboard.chart import loss_chart, nice_ticks
from atom.dashboard.history import LossHistory, thinned


def test_a_round_is_kept_once_and_a_chain_that_went_back_forgets() -> None:
    history = LossHistory()
    for round_number, loss in [(1, 5.0), (2, 4.0), (2, 4.5), (3, 3.0), (4, None), (2, 4.25)]:
        history.add(round_number, loss)
    assert history.points == ((1, 5.0), (2, 4.25))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_kept(loss: float) -> None:
    history = LossHistory()
    history.add(1, loss)
    assert history.points == ()


def test_only_the_newest_points_are_kept() -> None:
    history = LossHistory(max_points=3)
    for round_number in range(10):
        history.add(round_number, 1.0)
    assert [round_number for round_number, _ in history.points] == [7, 8, 9]


@given(st.integers(2, 2000), st.integers(3, 100))
def test_thinning_keeps_ends_order_and_bound(count: int, most: int) -> None:
    points = [(round_number, float(round_number % 7)) for round_number in range(count)]
    few = thinned(points, most)
    assert len(few) <= most
    assert (few[0], few[-1]) == (points[0], points[-1])
    rounds = [round_number for round_number, _ in few]
    assert rounds == sorted(set(rounds))


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_what_is_drawn(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span, 4)
    assert 2 <= len(ticks) <= 7
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step + 1e-9
    assert ticks[-1] >= low + span - 1e-6 * step - 1e-9


@pytest.mark.parametrize(
    "points",
    [[(1, 5.5), (2, 5.5)], [(1, 5.0), (900_000, 0.001)], [(r, 1 / r) for r in range(1, 999)]],
)
def test_the_curve_stays_inside_its_picture(points: list[tuple[int, float]]) -> None:
    picture = ElementTree.fromstring(loss_chart(points))
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    line = next(part for part in picture if part.tag == "polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert 2 <= len(places) <= 400
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
