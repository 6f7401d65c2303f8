"""Random and mutated bytes, a few of them: `python -m tests.attacks.fuzz_dht` takes any number."""

import random
from pathlib import Path

import pytest

from tests.attacks.fuzz_dht import fuzz_decoder, fuzz_process

pytestmark = pytest.mark.timeout(180)
SEED = 1


def test_the_decoder_returns_or_refuses_whatever_it_reads() -> None:
    accepted = fuzz_decoder(20_000, random.Random(SEED))
    assert 400 < accepted < 10_000, "the mutations reach both sides of the bounds"


async def test_the_dht_process_outlives_random_requests_and_answers(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    tally = await fuzz_process(10_000, draw, tmp_path, say=lambda _: None)
    assert tally.values >= 10_000
    assert tally.calls > 0
    assert not any("busy" in outcome for outcome in tally.outcomes)
