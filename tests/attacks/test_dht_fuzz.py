"""Random and mutated bytes, a few of them: `python -m tests.attacks.fuzz_dht` takes any number."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.attacks.fuzz_dht import fuzz_decoder, fuzz_process

pytestmark = pytest.mark.timeout(180)
SEED = 1


def test_the_decoder_returns_or_refuses_whatever_it_reads() -> None:
    accepted = fuzz_decoder(50_000, random.Random(SEED))
    assert 1_000 < accepted < 25_000, "the mutations reach both sides of the bounds"


def test_the_dht_process_outlives_random_requests_and_answers(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    tally = asyncio.run(fuzz_process(20_000, draw, tmp_path, say=lambda _: None))
    assert tally.values >= 20_000
    assert tally.calls > 0
    assert not any("busy" in outcome for outcome in tally.outcomes)
