"""Histories full of faults: nothing false is ever committed, and in the end all agree.

Run one again by its seed: `histories.history(seed)`. The long form is the same test under
`ATOM_CHAOS_BLOCKS=320` (see the Makefile).
"""

import os

import pytest
from histories import history
from simulation import BrokenPromise, Setting, Swarm

import atom.training.round.attempt
from atom.training.round.attempt import Attempt
from atom.training.round.coordinator import Coordinator

BLOCKS, SEEDS_PER_BLOCK = int(os.environ.get("ATOM_CHAOS_BLOCKS", "2")), 40
KNOWN_BLOCKS, ROUNDS_PER_BLOCK, TRIGGERS_PER_BLOCK = 2, 625, 312
"""The first blocks reach these sums. Of other blocks, only a part is expected."""
PART = 0.2


@pytest.mark.timeout(240)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_realistic_faults(block: int) -> None:
    committed = triggers = 0
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        seen = history(seed).witness
        committed, triggers = committed + seen.rounds, triggers + seen.triggers
    part = 1.0 if block < KNOWN_BLOCKS else PART
    assert committed >= part * ROUNDS_PER_BLOCK, "faults so bad that little happened prove little"
    assert triggers >= part * TRIGGERS_PER_BLOCK, "none of them early, or a promise were broken"


def test_one_seed_is_one_history() -> None:
    assert history(1).story() == history(1).story()


# ---- promises that are really broken are found, and told with their story


def test_accepted_values_that_nobody_asks_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atom.training.round.attempt, "value_to_finish", lambda promises: None)
    with pytest.raises(BrokenPromise, match="seed 374: no agreement on round") as told:
        history(374)
    assert "reason=ballot-too-low" in str(told.value), "voters keep to what they accepted"


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
