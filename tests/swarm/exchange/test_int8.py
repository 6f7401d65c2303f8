"""Eight bits per number: idempotent, bounded errors, nothing that a scale could blow up."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.codec import INT8_BLOCK as BLOCK
from atom.swarm.exchange.codec import Int8

CODEC = Int8()


def encoded(values: Tensor) -> Tensor:
    scratch = torch.empty(4 * values.numel() + 4, dtype=torch.uint8)
    return CODEC.encode(values, scratch).clone()


def decoded(wire: Tensor, elements: int) -> Tensor:
    out = torch.full((elements,), float("nan"))
    CODEC.decode(wire, out)
    return out


@pytest.mark.parametrize("elements", [1, 16, BLOCK - 1, BLOCK, BLOCK + 16, 5 * BLOCK + 48])
def test_sizes(elements: int) -> None:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(elements))
    wire = encoded(values)
    assert wire.numel() == CODEC.wire_bytes(elements) == elements + 2 * (-(-elements // BLOCK))
    assert decoded(wire, elements).isfinite().all()


def test_errors_are_at_most_half_a_step() -> None:
    values = torch.randn(64 * BLOCK, generator=torch.Generator().manual_seed(1))
    error = (decoded(encoded(values), values.numel()) - values).abs().view(64, BLOCK)
    step = values.abs().view(64, BLOCK).amax(1) / 127
    assert (error <= 0.502 * step[:, None]).all()


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=40), st.integers(0, 3))
def test_encoding_what_was_decoded_gives_the_same_bytes(numbers: list[float], more: int) -> None:
    values = torch.tensor(numbers * (1 + more * BLOCK // len(numbers)), dtype=torch.float32)
    wire = encoded(values)
    once = decoded(wire, values.numel())
    assert once.isfinite().all()
    assert torch.equal(encoded(once), wire)


@pytest.mark.parametrize("power", [*range(-149, 128, 3), 127])
def test_any_magnitude(power: int) -> None:
    generator = torch.Generator().manual_seed(power + 200)
    values = (torch.rand(4 * BLOCK, generator=generator) * 2 - 1) * 2.0**power
    once = decoded(encoded(values), values.numel())
    assert torch.equal(encoded(once), encoded(values))
    if power > -90:
        assert (once - values).abs().max() <= values.abs().max() / 250
    else:
        assert once.abs().max() <= values.abs().max() * 1.01, "zeros, or right"


def test_a_block_of_zeros_and_signed_zeros() -> None:
    wire = encoded(torch.tensor([0.0, -0.0] * BLOCK))
    assert not wire.any()
    assert torch.equal(decoded(wire, 2 * BLOCK), torch.zeros(2 * BLOCK))


@pytest.mark.parametrize("scale", [0x7F80, 0xFF80, 0x7FC0])
def test_a_strangers_scale_shows_as_a_number_that_is_not_finite(scale: int) -> None:
    wire = encoded(torch.ones(BLOCK))
    wire.numpy()[:2].view(numpy.uint16)[0] = scale
    with pytest.raises(NotFinite):
        decoded(wire, BLOCK)


def rewritten(wire: Tensor, scale: int, *steps: int) -> Tensor:
    """The first block's scale (bits of a bfloat16) and its first steps, replaced."""
    wire.numpy()[:2].view(numpy.uint16)[0] = scale
    blocks = -(-wire.numel() // (BLOCK + 2))
    wire[2 * blocks :].view(torch.int8)[: len(steps)] = torch.tensor(steps, dtype=torch.int8)
    return wire


ONE = 0x3F80
FAINT = 0x0D00
"""Bits of 1, and of less than the smallest scale."""


@pytest.mark.parametrize(
    ("scale", "steps"),
    [
        (ONE, (126,)), (ONE, (64, -2)), (ONE, (-128, 127)), (ONE, (0,)), (ONE | 0x8000, (127,)),
        (FAINT, (127,)), (0, (1,)), (0, (127,)), (0x8000, (0,)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 3])
def test_what_no_encoder_writes_is_refused(scale: int, steps: tuple[int, ...], blocks: int) -> None:
    wire = encoded(torch.zeros(blocks * BLOCK - 8))
    with pytest.raises(NotCanonical):
        decoded(rewritten(wire, scale, *steps), blocks * BLOCK - 8)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 0x7F7F), st.lists(st.integers(-127, 127), min_size=1, max_size=40))
def test_what_is_decoded_would_be_written_the_same(scale: int, steps: list[int]) -> None:
    steps.append(127 if scale else 0)
    wire = rewritten(encoded(torch.zeros(64)), scale, *steps)
    try:
        values = decoded(wire, 64)
    except (NotCanonical, NotFinite):
        return
    assert torch.equal(encoded(values), wire)


def test_noise_is_refused() -> None:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randint(0, 256, (CODEC.wire_bytes(BLOCK),), generator=generator)
    with pytest.raises(NotCanonical):
        decoded(noise.to(torch.uint8), BLOCK)
