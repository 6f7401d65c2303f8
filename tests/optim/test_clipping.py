"""The norm's bits, and what clipping makes of it."""

import math
from collections.abc import Sequence

import pytest
import torch

from atom.optim import clipping
from atom.optim.clipping import clip_coefficient, gradient_norm

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
    """Python's own `sum` compensates rounding errors from 3.12 on."""
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
