"""Survivors that all called too often: one of them gets the promises of all, all the same."""

import random

import pytest
from simulation import HASTY, PATIENT, Setting, Swarm

from atom.training.round.calls import FREE
from atom.training.round.terms import Patience

SURVIVORS = 4
WITHIN_S = 120.0


def crowded(seed: int, patience: Patience) -> Swarm:
    """Five of nine voters are dead. Each that is left has heard more calls of each other than it
    listens to without a wait, and none of these waits is over when another is."""
    swarm = Swarm(seed, Setting(peers=9, pass_seconds=(0.2, 0.5), patience=patience))
    swarm.run_until_agreed(60.0, 1)
    for process in swarm.living[SURVIVORS:]:
        process.die()
    dice, names = random.Random(seed), [process.peer_id for process in swarm.living]
    for process in swarm.living:
        desk = process.machine._desk
        for name in names:
            for _ in range(FREE + 3):
                desk.state.calls[name].made(desk.now + dice.uniform(0.0, 30.0))
    return swarm


@pytest.mark.parametrize("patience", [HASTY, PATIENT], ids=["hasty", "patient"])
@pytest.mark.parametrize("seed", range(5))
def test_survivors_do_not_keep_each_other_from_going_on(seed: int, patience: Patience) -> None:
    swarm = crowded(seed, patience)
    swarm.run_until_agreed(WITHIN_S, 1)
    assert swarm.witness.branches == 1
