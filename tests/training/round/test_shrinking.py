"""A promise that is really broken: the story told is a short one, and breaks the same promise."""

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
