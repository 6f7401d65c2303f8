"""The norm's bits, whole and as its parts land; and what clipping makes of it."""

import itertools
import math
import queue
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from atom.base.landing import LandedBlocks
from atom.optim import clipping
from atom.optim.clipping import LandingNorm, clip_coefficient, gradient_norm

LANES, BLOCK, ELEMENTS = 64, 1024, 10_000


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "LANES", LANES)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", BLOCK)


def normal(elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(elements))


def defined(values: Sequence[float]) -> float:
    """The norm, its additions in the order that is documented, in plain Python floats."""
    total = 0.0
    for start in range(0, len(values), BLOCK):
        lanes = [0.0] * LANES
        for position, x in enumerate(values[start : start + BLOCK]):
            lanes[position % LANES] += x * x
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        total += lanes[0]
    return math.sqrt(total)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 1024, 5001])
def test_the_bits_follow_from_the_definition(elements: int, dtype: torch.dtype) -> None:
    gradient = normal(elements).to(dtype)
    norm, values = gradient_norm(gradient), gradient.tolist()
    assert norm == defined(values)
    assert norm == pytest.approx(math.hypot(*values), rel=1e-14)


def test_the_sum_of_blocks_is_rounded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is not by Python's own `sum`, from 3.12 on."""
    monkeypatch.setattr(clipping, "LANES", 1)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 1)
    gradient = torch.ones(9)
    gradient[0] = 2.0**27  # whose square swallows the others', one by one
    assert gradient_norm(gradient) == 2.0**27


@pytest.mark.parametrize(
    ("element", "norm"), [(3e38, 6e38), (1e-44, 2e-44), (math.inf, math.inf), (math.nan, math.nan)]
)
def test_no_overflow_no_underflow_and_what_is_not_finite_shows(element: float, norm: float) -> None:
    found = gradient_norm(torch.full((4,), element))
    assert found == pytest.approx(norm, rel=0.1, nan_ok=True)
    if not math.isfinite(norm):
        with pytest.raises(ValueError, match="norm"):
            clip_coefficient(found, 1.0)


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


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(20))
def test_neither_pieces_nor_their_order_show(gradient: torch.Tensor, seed: int) -> None:
    """Nor what has not landed: it counts as it is at the end."""
    chance = random.Random(seed)
    borders = sorted(chance.sample(range(1, ELEMENTS), chance.choice([0, 1, 5, 40, 400])))
    pieces = list(itertools.pairwise([0, *borders, ELEMENTS]))
    chance.shuffle(pieces)
    torch.set_num_threads(chance.choice([1, 3]))
    landing, late = LandingNorm(gradient), pieces.pop()
    with ThreadPoolExecutor(chance.choice([1, 4])) as pool:
        list(pool.map(lambda piece: landing.landed(*piece), pieces))
    gradient[slice(*late)] *= 2
    assert landing.norm() == gradient_norm(gradient)


def test_only_blocks_of_the_last_piece_are_left_for_the_end() -> None:
    seen = queue.SimpleQueue[int]()
    blocks = LandedBlocks(ELEMENTS, BLOCK, lambda start, stop: seen.put(start), 2, "blocks")
    blocks.landed(1500, ELEMENTS)
    later = list(range(2 * BLOCK, ELEMENTS, BLOCK))
    assert sorted(seen.get(timeout=20) for _ in later) == later
    blocks.landed(0, 1500)
    assert sorted(seen.get(timeout=20) for _ in range(2)) == [0, BLOCK]
    assert len(list(blocks.found())) == len(later) + 2
    assert seen.empty(), "each of them once"


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
