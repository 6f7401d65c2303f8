"""Figures of real daemons from their event logs, and a large model's round in small."""

import pytest
from programs import event

from benchmarks.home import figures
from benchmarks.home import small_round as scale
from benchmarks.shared import daemon_logs as real_rounds


@pytest.mark.parametrize("mbit", [20, 100, 1000])
@pytest.mark.parametrize("round_s", [0.5, 30, 60])
@pytest.mark.parametrize(("steps", "passes"), [(30, 30), (30, 10), (1, 1)])
def test_a_small_round_has_the_large_ones_shares(
    mbit: float, round_s: float, steps: int, passes: int
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


def test_time_with_neither_pass_nor_averaging_is_counted_once() -> None:
    log = [
        event(3.0, "passed", began=1.0),
        event(4.0, "ringing"),
        event(5.0, "passed", began=3.5),
        event(7.0, "round", sequences=1, reduce_seconds=2.0),
        event(12.0, "passed", began=9.0),
    ]
    assert figures.neither(log, figures.Span(0.5, 10.0)) == pytest.approx(0.5 + 0.5 + 3.0)
    assert figures.neither(log, figures.Span(4.5, 5.5)) == 0


def test_the_trigger_is_late_by_what_lies_between_the_last_pass_and_the_call() -> None:
    founder = [
        event(1.0, "counted", head="a", sequences=8),
        event(2.0, "counted", head="a", sequences=16),
        event(2.75, "asked", head="a"),
        event(2.76, "asked", head="a"),
        event(3.0, "ringing", head="a"),
        event(4.0, "counted", head="b", sequences=8),
    ]
    joiner = [
        event(1.5, "counted", head="a", sequences=8),
        event(3.5, "ringing", head="a"),
    ]
    first, second = real_rounds.rounds_of([founder, joiner], 24, since=0.0)
    assert first.late_s == pytest.approx(0.75)
    assert first.forming_s == pytest.approx(0.75)
    assert second.reached is None
    assert second.late_s is None


def test_an_all_reduce_is_one_trigger_whoever_tells_of_it() -> None:
    one = {"head": "a", "ballot": "1 p1 00"}
    founder = [
        event(0.5, "ringing", head="z", ballot="7 p1 00", sequences=24),
        event(1.0, "ringing", **one, sequences=24),
        event(2.0, "ringing", head="b", ballot="1 p1 00", sequences=23),
    ]
    joiner = [event(1.1, "ringing", **one, sequences=24)]
    assert real_rounds.triggers([founder, joiner], since=0.75) == [24, 23]
