"""Hundreds of histories full of faults: nothing false is ever committed, and in the end all agree.

Run one again by its seed: `simulation.history(seed)`.
"""

import pytest
from adversary import Adversary
from simulation import history

SEEDS_PER_BLOCK = 30


@pytest.mark.parametrize("block", range(10))
def test_realistic_faults(block: int) -> None:
    committed = 0
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        committed += len(history(seed).witness.heads) - 1
    assert committed > 3 * SEEDS_PER_BLOCK, "faults so bad that nothing happened prove nothing"


@pytest.mark.parametrize("peers", [2, 3, 4, 5])
def test_no_time_and_no_manners(peers: int) -> None:
    committed = 0
    for seed in range(8):
        adversary = Adversary(seed, peers, faults=0.002 * (seed % 3))
        adversary.play(1500)
        committed += len(adversary.witness.ordinary)
    assert committed > 8


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(seed: int) -> None:
    assert history(seed).story() == history(seed).story()
