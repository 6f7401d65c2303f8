"""Thousands of rounds full of faults: nothing false is ever committed, and in the end all agree.

Run one again by its seed: `histories.history(seed)`. More of them: `soak.py`.
"""

import pytest
from histories import history

BLOCKS, SEEDS_PER_BLOCK = 4, 40
ROUNDS = 2_500
TRIGGERS = 1_250


@pytest.mark.timeout(240)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_realistic_faults(block: int) -> None:
    committed = triggers = 0
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        seen = history(seed).witness
        committed, triggers = committed + seen.rounds, triggers + seen.triggers
    assert committed >= ROUNDS // BLOCKS, "faults so bad that little happened prove little"
    assert triggers >= TRIGGERS // BLOCKS, "none of them early, or a promise were broken"


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(seed: int) -> None:
    assert history(seed).story() == history(seed).story()
