"""A trigger is early if an all-reduce is begun with less than the global batch: that is seen at
once, whatever becomes of it."""

import pytest
from simulation import BrokenPromise, Setting, Swarm

from atom.training.round.attempt import Attempt
from atom.training.round.coordinator import Coordinator


def test_every_round_has_its_trigger() -> None:
    swarm = Swarm(5, Setting())
    swarm.run_until_agreed(60.0, rounds=4)
    assert swarm.witness.triggers >= swarm.witness.rounds >= 4
    assert swarm.witness.early == 0


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
