"""Losses as seen, thinned and drawn."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.extras.dashboard.chart import (
    LossHistory,
    SpeedHistory,
    loss_chart,
    nice_ticks,
    speed_chart,
    thinned,
)
from atom.swarm.records.lease import MAX_LOSS, MAX_RATE
from tests.manual_clock import ManualClock


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


def test_a_speed_is_kept_once_a_second_and_old_ones_get_coarser() -> None:
    clock = ManualClock(1000.0)
    history = SpeedHistory(clock, max_points=10)
    for speed in range(30):
        history.add(speed)
        history.add(2.0 * speed)
        clock.advance(1)
    seconds = [second for second, _ in history.points]
    assert len(seconds) <= 10
    assert (seconds[0], seconds[-1]) == (0, 29)
    assert seconds == sorted(set(seconds))
    assert all(speed == pytest.approx(2 * second, abs=2) for second, speed in history.points)


@pytest.mark.parametrize("speed", [math.nan, math.inf])
def test_a_speed_that_is_no_number_is_not_kept(speed: float) -> None:
    history = SpeedHistory(ManualClock(1000.0))
    history.add(speed)
    assert history.points == ()


def test_what_leases_may_say_can_be_drawn() -> None:
    for svg in (
        loss_chart([(1, -MAX_LOSS), (2, MAX_LOSS)]),
        speed_chart([(0, 0.0), (1, 10_000 * MAX_RATE)], "tokens per second"),
    ):
        texts = [part.text or "" for part in ElementTree.fromstring(svg)]
        assert max(map(len, texts)) < 24
        assert "inf" not in svg
        assert "nan" not in svg


@pytest.mark.parametrize(
    ("chart", "ends"),
    [
        (loss_chart([(1, 5.0), (1234, 4.0)]), ["1", "1,234"]),
        (speed_chart([(10, 5.0), (610, 4.0)], "tokens per second"), ["10 min ago", "now"]),
    ],
)
def test_the_ends_of_a_curve_are_named(chart: str, ends: list[str]) -> None:
    texts = [part.text for part in ElementTree.fromstring(chart) if part.tag == "text"]
    assert texts[-2:] == ends


@pytest.mark.parametrize(
    ("speeds", "labels"),
    [
        ([0.0, 0.0], {"0.00", "0.50", "1.00"}),
        ([90_000.0, 98_765.0], {"0", "25k", "50k", "75k", "100k"}),
        ([4e7, 4.9e7], {"0", "20M", "40M", "60M"}),
    ],
)
def test_a_speed_is_drawn_from_zero_in_numbers_of_few_digits(
    speeds: list[float], labels: set[str]
) -> None:
    picture = ElementTree.fromstring(speed_chart(list(enumerate(speeds)), "tokens per second"))
    assert {part.text for part in picture if part.tag == "text"} >= labels
