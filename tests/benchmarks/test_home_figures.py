"""A large model's round in small, and what the benchmark of home lines makes of its logs."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("home_scale")


@pytest.fixture
def figures(scale: ModuleType) -> ModuleType:
    return import_module("home_figures")


def event(time: float, kind: str, **fields: object) -> dict[str, object]:
    return {"time": time, "event": kind, **fields}


@pytest.mark.parametrize("mbit", [20, 100, 1000])
@pytest.mark.parametrize("round_s", [0.5, 30, 60])
@pytest.mark.parametrize(("steps", "passes"), [(30, 30), (30, 10), (1, 1)])
def test_a_small_round_has_the_large_ones_shares(
    scale: ModuleType, mbit: float, round_s: float, steps: int, passes: int
) -> None:
    real = scale.RealRound(7e9, steps, mbit * 1e6 / 8, 0.53125, 117.6e12)
    assert real.tokens_per_s == pytest.approx(2800)
    small = scale.small_round(real, 6_000_000, passes, round_s)
    passes_s = small.passes * small.pass_s
    exchange_s = 2 * small.elements * small.number_bytes / small.line_bytes_per_s
    assert exchange_s / passes_s == pytest.approx(real.exchange_s / real.passes_s)
    assert small.real_seconds * passes_s == pytest.approx(real.passes_s)
    assert small.pass_s >= scale.LEAST_PASS_S
    if small.pass_s > scale.LEAST_PASS_S:
        assert passes_s + exchange_s == pytest.approx(round_s)


def test_the_formula_counts_each_number_twice_but_ones_own(scale: ModuleType) -> None:
    small = scale.SmallRound(30, 0.5, 1e6, 50.0, elements=1000, number_bytes=4.0)
    assert small.upload_bytes(2) == 4000
    assert small.upload_bytes(8) == 7000


def test_time_in_passes_is_that_within_the_window(figures: ModuleType) -> None:
    log = [event(each + 2.0, "passed", began=each) for each in (0.0, 3.0, 9.0)]
    window = figures.Span(1.0, 10.0)
    assert figures.share(figures.passes(log), window) == pytest.approx((1 + 2 + 1) / 9)


def test_time_with_neither_pass_nor_averaging_is_counted_once(figures: ModuleType) -> None:
    log = [
        event(3.0, "passed", began=1.0),
        event(4.0, "ringing"),
        event(5.0, "passed", began=3.5),
        event(7.0, "round", sequences=1, reduce_seconds=2.0),
        event(12.0, "passed", began=9.0),
    ]
    assert figures.neither(log, figures.Span(0.5, 10.0)) == pytest.approx(0.5 + 0.5 + 3.0)
    assert figures.neither(log, figures.Span(4.5, 5.5)) == 0


def test_a_round_counts_where_it_was_committed(figures: ModuleType) -> None:
    log = [
        event(at, "round", sequences=number, reduce_seconds=float(number))
        for at, number in ((1.0, 1), (2.0, 2), (3.0, 4), (4.0, 8))
    ]
    window = figures.Span(1.0, 3.0)
    assert figures.sequences(log, window) == 6
    assert figures.exchange_seconds(log, window) == 3
    assert figures.longest_gap([1.0, 3.0, 4.0], since=1.0) == 2
    assert figures.longest_gap([1.0, 3.0, 4.0], since=3.5) == 1


def test_payload_is_without_headers_and_even_between_readings(figures: ModuleType) -> None:
    """Two packets a second, one of which only acknowledges."""
    readings = [
        figures.Reading(float(second), 100 * second + 2 * second * figures.HEADER_BYTES, 2 * second)
        for second in range(0, 31, 3)
    ]
    assert figures.payload(readings, figures.Span(10.0, 29.5)) == pytest.approx(1950)
    assert figures.payload(readings, figures.Span(-5.0, 60.0)) == pytest.approx(3000)


def test_states_are_compared_where_several_told_one(figures: ModuleType) -> None:
    one = [event(1.0, "round", head="a", digest="x"), event(2.0, "round", head="b", digest="y")]
    two = [event(1.0, "round", head="a", digest="x"), event(2.0, "round", head="b", digest="z")]
    assert figures.compared_states([one, two]) == (2, 1)
    assert figures.compared_states([one, two[:1]]) == (1, 0)
    assert figures.compared_states([one]) == (0, 0)
