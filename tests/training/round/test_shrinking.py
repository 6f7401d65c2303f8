"""Promises that are really broken: they are found, and the story told is a short one."""

import pytest
from histories import History, drawn
from shrinking import Shrinker, explained
from simulation import BrokenPromise, Setting, Swarm

import atom.training.round.attempt
from atom.training.round.attempt import Attempt
from atom.training.round.coordinator import Coordinator


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


def test_a_coordinator_that_forgets_some_who_promised_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compose = Coordinator._compose

    def forgetful(self: Coordinator, attempt: Attempt) -> None:
        compose(self, attempt)
        attempt.members = attempt.members[:1]

    monkeypatch.setattr(Coordinator, "_compose", forgetful)
    swarm = Swarm(5, Setting())
    with pytest.raises(BrokenPromise, match="an all-reduce was begun early"):
        swarm.run(60.0)
    assert swarm.witness.rounds == 0, "it is found before anything is committed"
