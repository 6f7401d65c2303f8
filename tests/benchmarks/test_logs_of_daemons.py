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


def test_the_formula_counts_each_number_twice_but_ones_own() -> None:
    small = scale.SmallRound(30, 0.5, 1e6, 50.0, elements=1000, number_bytes=4.0)
    assert small.upload_bytes(2) == 4000
    assert small.upload_bytes(8) == 7000


def test_time_in_passes_is_that_within_the_window() -> None:
    log = [event(each + 2.0, "passed", began=each) for each in (0.0, 3.0, 9.0)]
    window = figures.Span(1.0, 10.0)
    assert figures.share(figures.passes(log), window) == pytest.approx((1 + 2 + 1) / 9)


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


def test_a_round_counts_where_it_was_committed() -> None:
    log = [
        event(at, "round", sequences=number, reduce_seconds=float(number))
        for at, number in ((1.0, 1), (2.0, 2), (3.0, 4), (4.0, 8))
    ]
    window = figures.Span(1.0, 3.0)
    assert figures.sequences(log, window) == 6
    assert figures.exchange_seconds(log, window) == 3
    assert figures.longest_gap([1.0, 3.0, 4.0], since=1.0) == 2
    assert figures.longest_gap([1.0, 3.0, 4.0], since=3.5) == 1


def test_payload_is_without_headers() -> None:
    """Of ten packets five only acknowledge."""
    before = 700, 3
    after = 700 + 500 + 10 * figures.HEADER_BYTES, 13
    assert figures.payload(before, after) == 500


def test_states_are_compared_where_several_told_one() -> None:
    one = [event(1.0, "round", head="a", digest="x"), event(2.0, "round", head="b", digest="y")]
    two = [event(1.0, "round", head="a", digest="x"), event(2.0, "round", head="b", digest="z")]
    assert figures.compared_states([one, two]) == (2, 1)
    assert figures.compared_states([one, two[:1]]) == (1, 0)
    assert figures.compared_states([one]) == (0, 0)


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
