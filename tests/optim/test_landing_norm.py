"""The norm of what lands piece by piece: the bits of the whole, and little left for the end."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from atom.optim import clipping
from atom.optim.clipping import LandingNorm, gradient_norm

BLOCK, ELEMENTS = 1024, 10_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", BLOCK)


@pytest.fixture
def gradient() -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(5))


def pieces(borders: Sequence[int]) -> list[tuple[int, int]]:
    ends = [0, *sorted(borders), ELEMENTS]
    return list(itertools.pairwise(ends))


@pytest.mark.parametrize("seed", range(20))
def test_neither_pieces_nor_their_order_show(gradient: torch.Tensor, seed: int) -> None:
    chance = random.Random(seed)
    cut = pieces(chance.sample(range(1, ELEMENTS), chance.choice([0, 1, 5, 40, 400])))
    chance.shuffle(cut)
    landing = LandingNorm(gradient, chance.choice([1, 3]))
    for start, stop in cut:
        landing.landed(start, stop)
    assert landing.norm() == gradient_norm(gradient)


def test_they_may_land_from_several_threads(gradient: torch.Tensor) -> None:
    landing = LandingNorm(gradient, 2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda piece: landing.landed(*piece), pieces(range(50, ELEMENTS, 50))))
    assert landing.norm() == gradient_norm(gradient)


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Waits until so many blocks are being summed; says where they begin."""
    seen, changed = list[int](), threading.Condition()
    plain = clipping._sum_of_squares

    def told(block: torch.Tensor) -> float:
        with changed:
            seen.append(block.storage_offset())
            changed.notify_all()
        return plain(block)

    def wait(count: int) -> list[int]:
        with changed:
            assert changed.wait_for(lambda: len(seen) >= count, 20)
            return sorted(seen)

    monkeypatch.setattr(clipping, "_sum_of_squares", told)
    return wait


def test_only_blocks_of_the_last_piece_are_left_for_the_end(
    gradient: torch.Tensor, summed: Callable[[int], list[int]]
) -> None:
    landing = LandingNorm(gradient, 1)
    landing.landed(1500, ELEMENTS)
    later = list(range(2 * BLOCK, ELEMENTS, BLOCK))
    assert summed(len(later)) == later
    landing.landed(0, 1500)
    assert summed(len(later) + 2) == [0, BLOCK, *later]
    landing.norm()
    assert len(summed(0)) == len(later) + 2, "each of them once"


def test_what_never_landed_counts_as_it_is(gradient: torch.Tensor) -> None:
    landing = LandingNorm(gradient)
    landing.landed(3000, 7000)
    gradient[:3000] *= 2
    assert landing.norm() == gradient_norm(gradient)


def test_an_element_lands_once(gradient: torch.Tensor) -> None:
    landing = LandingNorm(gradient)
    landing.landed(0, 2000)
    with pytest.raises(AssertionError, match="once"):
        landing.landed(1000, 1024)
    landing.close()


def test_closing_ends_its_threads(gradient: torch.Tensor) -> None:
    before = set(threading.enumerate())
    landing = LandingNorm(gradient, 2)
    landing.landed(0, ELEMENTS)
    landing.close()
    assert set(threading.enumerate()) <= before
