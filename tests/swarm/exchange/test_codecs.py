"""Codecs and their compiled loops: as their formulas say, at every level of instructions, bit by
bit, idempotent; and what no encoder writes is noticed."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atom.base import kernel_library
from atom.config.run_file import CODECS
from atom.swarm.exchange.chunk_kernels import (
    FORMATS,
    SOURCE,
    ChunkKernels,
    NotCanonical,
    NotFinite,
    chunk_kernels,
)
from atom.swarm.exchange.codec import INT8_BLOCK as BLOCK
from atom.swarm.exchange.codec import Codec, Int8, codec_named

SIZES = [0, 1, 16, BLOCK - 1, BLOCK, 3 * BLOCK + 48]


@pytest.fixture(params=range(chunk_kernels().highest_level + 1))
def kernels(request: pytest.FixtureRequest) -> ChunkKernels:
    return ChunkKernels(kernel_library.load(SOURCE), request.param)


def numbers(elements: int, seed: int = 0) -> Tensor:
    """Of all magnitudes, halves between two steps and bfloat16 ties among them."""
    generator = torch.Generator().manual_seed(elements + seed)
    wide = torch.randn(elements, generator=generator)
    powers = torch.randint(-149, 120, (elements // BLOCK + 1,), generator=generator)
    wide *= 2.0 ** powers[torch.arange(elements) // BLOCK]
    wide[::7] = (wide[::7] * 16).round() / 16
    wide[::11] = (wide.view(torch.int32)[::11] & ~0xFFFF | 0x8000).view(torch.float32)
    return wide


def int8_reference(values: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes, and what they stand for; by blocks."""
    scales, steps, back = [], [], []
    for block in values.split(BLOCK):
        largest = block.abs().max().numpy()
        scale = torch.tensor(largest * numpy.float32(1 / 127)).bfloat16().float().numpy()
        scale = numpy.float32(0) if scale < numpy.float32(2.0**-100) else scale
        inverse = numpy.float32(1) / scale if scale > 0 else numpy.float32(0)
        rounded = numpy.rint(block.numpy() * inverse)
        scales.append(torch.tensor([float(scale)]).bfloat16().view(torch.uint8))
        steps.append(torch.from_numpy(rounded.astype(numpy.int8)).view(torch.uint8))
        back.append(torch.from_numpy(rounded * scale))
    return torch.cat([*scales, *steps]), torch.cat(back)


def reference(name: str, values: Tensor) -> tuple[Tensor, Tensor]:
    if name == "int8" and values.numel():
        return int8_reference(values)
    if name == "bfloat16":
        return values.bfloat16().view(torch.uint8), values.bfloat16().float()
    return values.view(torch.uint8), values


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("elements", SIZES)
def test_codecs_and_sums_follow_their_formula(
    kernels: ChunkKernels, name: str, elements: int
) -> None:
    """A sum is one rounding, a mean another."""
    values, own, out = numbers(elements), numbers(elements, 1), torch.empty(elements)
    wire, arrived = reference(name, values)
    kernels.add(name, wire, own, 1 / 3, out)
    assert torch.equal(out, (arrived + own) * torch.tensor(1 / 3))
    kernels.add(name, wire, own, 1 / 3, own)
    assert torch.equal(own, out)
    if name != "float32":
        lost, back, encoded = torch.empty(elements), torch.empty(elements), torch.empty_like(wire)
        assert wire.numel() == codec_named(name).wire_bytes(elements)
        kernels.encode(name, values, encoded, lost)
        kernels.decode(name, encoded, back)
        assert torch.equal(encoded, wire)
        assert torch.equal(back, arrived)
        assert torch.equal(lost, values - arrived)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_noticed_wherever_it_is(kernels: ChunkKernels, poison: float) -> None:
    for place in (0, 15, BLOCK + 1, 2 * BLOCK - 1):
        good, bad, out = torch.ones(2 * BLOCK), torch.ones(2 * BLOCK), torch.empty(2 * BLOCK)
        bad[place] = poison
        kernels.require_finite(good)
        with pytest.raises(NotFinite):
            kernels.require_finite(bad)
        for wire, own in ((good, bad), (bad, good)):
            with pytest.raises(NotFinite):
                kernels.add("float32", wire, own, 1.0, out)
        for name in FORMATS[1:]:
            wire = torch.empty(4096 + 4, dtype=torch.uint8)
            with pytest.raises(NotFinite):
                kernels.encode(name, bad, wire, None)
            with pytest.raises(NotFinite):
                kernels.decode(name, wire, out)
            with pytest.raises(NotFinite):
                kernels.add(name, wire, good, 1.0, out)


def test_what_overflows_is_noticed(kernels: ChunkKernels) -> None:
    huge, out = torch.full((64,), 3.4e38), torch.empty(64)
    for own, factor in ((huge, 0.25), (-huge / 2, 4.0)):
        with pytest.raises(NotFinite):
            kernels.add("float32", huge, own, factor, out)
    with pytest.raises(NotFinite):
        kernels.encode("bfloat16", huge, torch.empty(128, dtype=torch.uint8), None)


# ---- idempotent


INT8, FLOATS = Int8(), st.floats(width=32, allow_nan=False, allow_infinity=False)


def encoded(values: Tensor, codec: Codec = INT8) -> Tensor:
    return codec.encode(values, torch.empty(4 * values.numel() + 4, dtype=torch.uint8)).clone()


def decoded(wire: Tensor, elements: int, codec: Codec = INT8) -> Tensor:
    out = torch.full((elements,), float("nan"))
    codec.decode(wire, out)
    return out


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=40), st.integers(0, 3))
def test_encoding_what_was_decoded_gives_the_same_bytes(
    codec: Codec, some: list[float], more: int
) -> None:
    values = torch.tensor(some * (1 + more * BLOCK // len(some)), dtype=torch.float32)
    values = values.clamp(-3e38, 3e38)  # beyond, bfloat16 overflows, and says so
    once = decoded(encoded(values, codec), values.numel(), codec)
    assert once.isfinite().all()
    assert torch.equal(encoded(once, codec), encoded(values, codec))


def test_int8_holds_the_largest_number_and_zeros_of_both_signs() -> None:
    largest = torch.full((64,), torch.finfo(torch.float32).max)
    torch.testing.assert_close(decoded(encoded(largest), 64), largest, rtol=5e-3, atol=0.0)
    assert not encoded(torch.tensor([0.0, -0.0] * BLOCK)).any()


# ---- what no encoder writes


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
    ("scale", "steps", "problem"),
    [
        *((scale, (127,), NotFinite) for scale in (0x7F80, 0xFF80, 0x7FC0)),
        (ONE, (126,), NotCanonical), (ONE, (64, -2), NotCanonical), (ONE, (0,), NotCanonical),
        (ONE, (-128, 127), NotCanonical), (ONE | 0x8000, (127,), NotCanonical),
        (FAINT, (127,), NotCanonical), (0, (1,), NotCanonical), (0, (127,), NotCanonical),
        (0x8000, (0,), NotCanonical),
    ],
)  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 3])
def test_int8_what_no_encoder_writes_is_refused(
    scale: int, steps: tuple[int, ...], problem: type[Exception], blocks: int
) -> None:
    wire = encoded(torch.zeros(blocks * BLOCK - 8))
    with pytest.raises(problem):
        decoded(rewritten(wire, scale, *steps), blocks * BLOCK - 8)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 0x7F7F), st.lists(st.integers(-127, 127), min_size=1, max_size=40))
def test_int8_what_is_decoded_would_be_written_the_same(scale: int, steps: list[int]) -> None:
    steps.append(127 if scale else 0)
    wire = rewritten(encoded(torch.zeros(64)), scale, *steps)
    try:
        values = decoded(wire, 64)
    except (NotCanonical, NotFinite):
        return
    assert torch.equal(encoded(values), wire)
