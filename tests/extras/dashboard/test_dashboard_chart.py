"""Losses as seen, thinned, drawn, and told under the pointer."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atom.extras.dashboard.chart import drawable, label, loss_chart, readable_scale, thinned
from atom.extras.dashboard.page import TEMPLATES
from atom.swarm.chain.commit_chain import Round
from atom.swarm.records.lease import MAX_LOSS


def rounds(losses: Sequence[float], first: int = 1) -> list[Round]:
    return [Round(number, loss, 64, 2, 0, 0) for number, loss in enumerate(losses, first)]


def drawn(
    rounds: Sequence[Round],
    validations: Mapping[int, float] = MappingProxyType({}),
    samples: Mapping[int, str] = MappingProxyType({}),
) -> str:
    chart = loss_chart(rounds, validations, samples)
    return TEMPLATES.get_template("chart.html").render(chart=chart)


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<all>{html}</all>")


def texts(picture: ElementTree.Element, path: str) -> list[str]:
    return [part.text or "" for part in picture.findall(path)]


@given(st.integers(2, 2000), st.integers(3, 100))
def test_thinning_keeps_ends_order_and_bound(count: int, most: int) -> None:
    few = thinned(count, most)
    assert len(few) == min(count, most)
    assert (few[0], few[-1]) == (0, count - 1)
    assert few == sorted(set(few))


@given(st.floats(-MAX_LOSS, MAX_LOSS), st.floats(-MAX_LOSS, MAX_LOSS), st.integers(2, 60))
@example(0.0, -1.0, 3)
def test_an_axis_contains_its_values_and_has_short_numbers(a: float, b: float, most: int) -> None:
    low, high = min(a, b), max(a, b)
    start, step, steps = readable_scale(low, high, most)
    slack = 1e-9 * max(abs(low), abs(high), 1.0)
    assert 1 <= steps <= most
    assert start <= low + slack
    assert start + steps * step >= high - slack
    assert len({label(start + n * step, step) for n in range(steps + 1)}) == steps + 1


@pytest.mark.parametrize(
    "losses", [[5.5, 5.5], [5.0, 0.001], [1 / n for n in range(1, 999)], [-MAX_LOSS, MAX_LOSS]]
)
def test_the_curve_stays_inside_its_picture(losses: list[float]) -> None:
    html = drawn(rounds(losses, first=900_000), {900_001: 4.0, 1: 9.0})
    assert not re.search("inf|nan", html)
    (line,) = parsed(html).iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert 2 <= len(places) <= 200
    assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)


def test_the_pointer_finds_loss_validation_samples_and_text() -> None:
    told = {2: 2.75, 900: 9.0}, {3: "def <x>", 901: "too early"}
    chart = parsed(drawn(rounds([3.0, 2.5, 2.0]), *told))
    assert texts(chart, ".//li/p") == [
        "round 1, loss 3.0000, 64 sequences",
        "round 2, loss 2.5000, validation 2.7500, 128 sequences",
        "round 3, loss 2.0000, 192 sequences, wrote: def <x>",
    ]
    dots = {path.attrib["class"]: path.attrib["d"] for path in chart.iter("path")}
    assert (dots["held-back"], dots["texts"]) == ("M500.0,25.00h0", "M1000.0,100.00h0")


@pytest.mark.parametrize("claimed", [-MAX_LOSS, -2.0, 9.0, 1e3, MAX_LOSS])
def test_a_peer_that_lies_about_its_validation_does_not_flatten_the_curve(claimed: float) -> None:
    honest = rounds([3.0, 2.5, 2.0])
    assert drawable({2: claimed, 3: 2.75}, honest) == {3: 2.75}
    assert loss_chart(honest, {2: claimed}, {}) == loss_chart(honest, {}, {})


def test_of_a_thinned_curve_no_validation_is_lost() -> None:
    held_back = {n: 2.0 + n / 1e4 for n in range(3, 5000, 7)}
    said = " ".join(texts(parsed(drawn(rounds([2.0] * 5000), held_back)), ".//li/p"))
    assert said.count("validation") == len(held_back)


def test_the_axes_have_readable_numbers() -> None:
    chart = parsed(drawn(rounds([4e4, *[0.0] * 1233])))
    labels = texts(chart, "./div/div[@class='ys']/span")
    assert labels == ["40,000", "30,000", "20,000", "10,000", "0"]
    ends = texts(chart, "./div/div[@class='xs']/span")
    assert ends == ["round 1", "round 1,234, 78,976 sequences"]
