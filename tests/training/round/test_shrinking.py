"""A promise that is really broken: the story told is a short one, and breaks the same promise."""

from dataclasses import replace

import pytest
from histories import History, drawn
from shrinking import Shrinker, explained

import atom.training.round.attempt


def test_accepted_values_that_nobody_asks_for_are_found_and_told_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(atom.training.round.attempt, "value_to_finish", lambda promises: None)
    past, promise = drawn(374), "two ordinary commits on one parent"
    small = Shrinker(History.broken_promise, most_plays=30).shrink(past)
    assert small.broken_promise() == promise
    assert len(small.strikes) < len(past.strikes)
    assert small.setting.peers <= past.setting.peers
    assert promise in explained(small, most_plays=1)


def test_nothing_is_left_of_what_has_nothing_to_do_with_it() -> None:
    """With a promise that breaks whenever a partition is dealt to three peers or more."""
    past = drawn(4)
    assert sum(strike.kind == "partition" for strike in past.strikes) > 1

    def breaks(history: History) -> str:
        enough = history.setting.peers >= 3
        cut = any(strike.kind == "partition" for strike in history.strikes)
        return "cut" if enough and cut else ""

    small = Shrinker(breaks).shrink(replace(past, setting=replace(past.setting, peers=5)))
    assert [strike.kind for strike in small.strikes] == ["partition"]
    assert small.setting.peers == 3
    assert small.faults_end_s == small.strikes[0].at_s + 1.0
