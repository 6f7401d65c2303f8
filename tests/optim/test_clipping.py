import math

import pytest
import torch

from atom.optim import clipping
from atom.optim.clipping import clip_coefficient, gradient_norm


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 1024)


def random(elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(elements))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 1024, 5001])
def test_it_is_the_exact_norm(elements: int) -> None:
    gradient = random(elements)
    exact = math.sqrt(math.fsum(float(x) ** 2 for x in gradient))
    assert gradient_norm(gradient) == pytest.approx(exact, rel=1e-14)


@pytest.mark.usefixtures("small_blocks")
def test_the_bits_follow_from_the_definition() -> None:
    """The order of additions as documented, in plain Python floats."""
    gradient = random(2500)
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
def test_threads_do_not_show() -> None:
    gradient = random(20_000)
    assert len({gradient_norm(gradient, threads) for threads in (None, 1, 2, 5)}) == 1


@pytest.mark.usefixtures("small_blocks")
def test_sixteen_bits_count_as_what_they_say() -> None:
    gradient = random(5001).bfloat16()
    assert gradient_norm(gradient) == gradient_norm(gradient.float())


def test_no_overflow_and_no_underflow() -> None:
    assert gradient_norm(torch.full((4,), 3e38)) == pytest.approx(6e38)
    assert gradient_norm(torch.full((4,), 1e-44)) == pytest.approx(2e-44, rel=0.1)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_element_that_is_not_finite_shows(bad: float) -> None:
    gradient = random(1000)
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
    parameter.grad = random(100)
    before = parameter.grad.clone()
    torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
    coefficient = clip_coefficient(gradient_norm(before), clip_norm)
    torch.testing.assert_close(before * coefficient, parameter.grad)


def test_without_clipping() -> None:
    assert clip_coefficient(1e9, None) == 1.0
    assert clip_coefficient(0.0, 1.0) == 1.0
