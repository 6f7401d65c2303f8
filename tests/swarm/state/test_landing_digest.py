"""The digest of what lands piece by piece: the bytes of the whole, whoever came first."""

import itertools
import random
import threading

import pytest
import torch

from atom.swarm.state import arenas
from atom.swarm.state.arenas import LandingDigest, arena_digest

ELEMENTS = 10_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "CHUNK_BYTES", 4096)


@pytest.fixture
def arena() -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_pieces_nor_their_order_show(
    arena: torch.Tensor, dtype: torch.dtype, seed: int
) -> None:
    arena, chance = arena.to(dtype), random.Random(seed)
    ends = [0, *sorted(chance.sample(range(1, ELEMENTS), chance.choice([0, 1, 40]))), ELEMENTS]
    cut = list(itertools.pairwise(ends))
    chance.shuffle(cut)
    landing = LandingDigest(arena, chance.choice([1, 3]))
    for start, stop in cut:
        landing.landed(start, stop)
    assert landing.digest() == arena_digest(arena)


def test_a_chunk_is_hashed_as_soon_as_it_has_landed(
    arena: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, plain = threading.Semaphore(0), arenas.chunk_digest

    def told(chunk: memoryview, threads: int) -> bytes:
        digest = plain(chunk, threads)
        hashed.release()
        return digest

    whole = arena_digest(arena)
    monkeypatch.setattr(arenas, "chunk_digest", told)
    landing = LandingDigest(arena, 1)
    landing.landed(0, 9000)
    for _ in range(8):
        assert hashed.acquire(timeout=20)
    arena[: 8 * 1024] = 0.0  # hashed before: nobody reads it again
    landing.landed(9000, ELEMENTS)
    assert landing.digest() == whole


def test_what_never_landed_counts_as_it_is(arena: torch.Tensor) -> None:
    landing = LandingDigest(arena)
    landing.landed(3000, 7000)
    arena[:3000] *= 2
    assert landing.digest() == arena_digest(arena)


def test_closing_ends_its_threads(arena: torch.Tensor) -> None:
    before = set(threading.enumerate())
    landing = LandingDigest(arena, 2)
    landing.landed(0, ELEMENTS)
    landing.close()
    assert set(threading.enumerate()) <= before
