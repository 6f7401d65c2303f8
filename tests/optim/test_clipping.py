"""The norm's bits, whole and as its parts land; and what clipping makes of it."""

import itertools
import math
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from atom.optim import clipping
from atom.optim.clipping import LandingNorm, clip_coefficient, gradient_norm

BLOCK, ELEMENTS = 1024, 10_000


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", BLOCK)


def normal(elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(elements))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 1024, 5001])
def test_it_is_the_exact_norm(elements: int) -> None:
    gradient = normal(elements)
    exact = math.sqrt(math.fsum(float(x) ** 2 for x in gradient))
    assert gradient_norm(gradient) == pytest.approx(exact, rel=1e-14)


@pytest.mark.usefixtures("small_blocks")
def test_the_bits_follow_from_the_definition() -> None:
    """The order of additions as documented, in plain Python floats."""
    gradient = normal(2500)
    total = 0.0
    for block in gradient.split(1024):
        lanes = [0.0] * 64
        for position, x in enumerate(block.tolist()):
            lanes[position % 64] += x * x
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        total += lanes[0]
    assert gradient_norm(gradient) == math.sqrt(total)


def test_the_sum_of_blocks_is_rounded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is not by Python's own `sum`, from 3.12 on."""
    monkeypatch.setattr(clipping, "LANES", 1)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 1)
    gradient = torch.ones(9)
    gradient[0] = 2.0**27  # whose square swallows the others', one by one
    assert gradient_norm(gradient) == 2.0**27


@pytest.mark.usefixtures("small_blocks")
def test_sixteen_bits_count_as_what_they_say() -> None:
    gradient = normal(5001).bfloat16()
    assert gradient_norm(gradient) == gradient_norm(gradient.float())


def test_no_overflow_and_no_underflow() -> None:
    assert gradient_norm(torch.full((4,), 3e38)) == pytest.approx(6e38)
    assert gradient_norm(torch.full((4,), 1e-44)) == pytest.approx(2e-44, rel=0.1)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_element_that_is_not_finite_shows(bad: float) -> None:
    gradient = normal(1000)
    gradient[17] = bad
    norm = gradient_norm(gradient)
    assert not math.isfinite(norm)
    with pytest.raises(ValueError, match="norm"):
        clip_coefficient(norm, 1.0)


@pytest.mark.parametrize(
    "gradient", [torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.zeros(()).bfloat16()]
)
def test_other_tensors_are_refused(gradient: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="flat tensor"):
        gradient_norm(gradient)


@pytest.mark.parametrize("clip_norm", [0.5, 100.0])
def test_clipping_is_torchs(clip_norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(100))
    parameter.grad = normal(100)
    before = parameter.grad.clone()
    torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
    coefficient = clip_coefficient(gradient_norm(before), clip_norm)
    torch.testing.assert_close(before * coefficient, parameter.grad)

    assert clip_coefficient(1e9, None) == 1.0
    assert clip_coefficient(0.0, 1.0) == 1.0


# --- as its parts land


@pytest.fixture
def gradient() -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(5))


def pieces(borders: Sequence[int]) -> list[tuple[int, int]]:
    ends = [0, *sorted(borders), ELEMENTS]
    return list(itertools.pairwise(ends))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(20))
def test_neither_pieces_nor_their_order_show(gradient: torch.Tensor, seed: int) -> None:
    chance = random.Random(seed)
    cut = pieces(chance.sample(range(1, ELEMENTS), chance.choice([0, 1, 5, 40, 400])))
    chance.shuffle(cut)
    torch.set_num_threads(chance.choice([1, 3]))
    landing = LandingNorm(gradient)
    with ThreadPoolExecutor(chance.choice([1, 4])) as pool:
        list(pool.map(lambda piece: landing.landed(*piece), cut))
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


@pytest.mark.usefixtures("small_blocks")
def test_only_blocks_of_the_last_piece_are_left_for_the_end(
    gradient: torch.Tensor, summed: Callable[[int], list[int]]
) -> None:
    landing = LandingNorm(gradient)
    landing.landed(1500, ELEMENTS)
    later = list(range(2 * BLOCK, ELEMENTS, BLOCK))
    assert summed(len(later)) == later
    landing.landed(0, 1500)
    assert summed(len(later) + 2) == [0, BLOCK, *later]
    landing.norm()
    assert len(summed(0)) == len(later) + 2, "each of them once"


@pytest.mark.usefixtures("small_blocks")
def test_what_never_landed_counts_as_it_is(gradient: torch.Tensor) -> None:
    landing = LandingNorm(gradient)
    landing.landed(3000, 7000)
    gradient[:3000] *= 2
    assert landing.norm() == gradient_norm(gradient)


@pytest.mark.usefixtures("small_blocks")
def test_an_element_lands_once_and_closing_ends_the_threads(gradient: torch.Tensor) -> None:
    before = set(threading.enumerate())
    torch.set_num_threads(2)
    landing = LandingNorm(gradient)
    landing.landed(0, 2000)
    with pytest.raises(AssertionError, match="once"):
        landing.landed(1000, 1024)
    landing.close()
    assert set(threading.enumerate()) <= before
