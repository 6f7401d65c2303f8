"""Promises that are really broken are found, and told with their story."""

import pytest
from histories import history
from simulation import BrokenPromise, Setting, Swarm

import atom.training.round.attempt
from atom.training.round.attempt import Attempt
from atom.training.round.coordinator import Coordinator


def test_accepted_values_that_nobody_asks_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atom.training.round.attempt, "value_to_finish", lambda promises: None)
    with pytest.raises(BrokenPromise, match="seed 374: two ordinary commits on one parent") as told:
        history(374)
    assert "CommitNotice" in str(told.value), "the story tells how"


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
