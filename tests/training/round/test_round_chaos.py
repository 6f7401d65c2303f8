"""Twenty thousand rounds full of faults: nothing false is ever committed, and in the end all agree.

Run one again by its seed: `histories.history(seed)`. A seed that fails is shrunk before it is told.
More of them: `soak.py`.
"""

import pytest
from histories import drawn, history
from shrinking import explained
from simulation import BrokenPromise

BLOCKS, SEEDS_PER_BLOCK = 4, 230
ROUNDS = 20_000
TRIGGERS = 10_000


@pytest.mark.timeout(240)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_realistic_faults(block: int) -> None:
    committed = triggers = 0
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        past = drawn(seed)
        try:
            seen = past.play().witness
        except BrokenPromise:
            pytest.fail(explained(past), pytrace=False)
        committed, triggers = committed + seen.rounds, triggers + seen.triggers
    assert committed >= ROUNDS // BLOCKS, "faults so bad that little happened prove little"
    assert triggers >= TRIGGERS // BLOCKS, "none of them early, or a promise were broken"


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(seed: int) -> None:
    assert history(seed).story() == history(seed).story()
