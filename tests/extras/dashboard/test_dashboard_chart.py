"""Losses as seen, thinned and drawn."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.extras.dashboard.chart import loss_chart, thinned
from atom.swarm.records.lease import MAX_LOSS


@given(st.integers(2, 2000), st.integers(3, 100))
def test_thinning_keeps_ends_order_and_bound(count: int, most: int) -> None:
    points = [(round_number, float(round_number % 7)) for round_number in range(count)]
    few = thinned(points, most)
    assert len(few) <= most
    assert (few[0], few[-1]) == (points[0], points[-1])
    rounds = [round_number for round_number, _ in few]
    assert rounds == sorted(set(rounds))


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


def test_what_leases_may_say_can_be_drawn() -> None:
    svg = loss_chart([(1, -MAX_LOSS), (2, MAX_LOSS)])
    texts = [part.text or "" for part in ElementTree.fromstring(svg)]
    assert max(map(len, texts)) < 24
    assert "inf" not in svg
    assert "nan" not in svg


@pytest.mark.parametrize(
    ("losses", "labels", "ends"),
    [
        ([0.0, 1.0], {"0", "0.25", "0.5", "0.75", "1"}, ["1", "2"]),
        ([90_000.0, 0.0], {"0", "22500", "45000", "67500", "90000"}, ["1", "2"]),
        ([4e7, *[0.0] * 1232, 4.9e7], {"0", "2.45e+07", "4.9e+07"}, ["1", "1,234"]),
    ],
)
def test_a_curve_has_numbers_of_few_digits_and_its_ends_are_named(
    losses: list[float], labels: set[str], ends: list[str]
) -> None:
    picture = ElementTree.fromstring(loss_chart(list(enumerate(losses, start=1))))
    texts = [part.text or "" for part in picture if part.tag == "text"]
    assert set(texts) >= labels
    assert texts[-2:] == ends
