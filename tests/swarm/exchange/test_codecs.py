"""Codecs and their compiled loops: bit-identical to their formulas at every level of instructions;
numbers that are not finite are noticed."""

import numpy
import pytest
import torch
from torch import Tensor

from atom.base import build_kernels
from atom.swarm.exchange.codec import (
    FORMATS,
    INT4_BLOCK,
    SOURCE,
    ChunkKernels,
    Codec,
    Int4,
    Int8,
    NotFinite,
    chunk_kernels,
    codec_named,
)
from atom.swarm.exchange.codec import INT8_BLOCK as BLOCK
from tests.swarm.means import wire_of

SIZES = [0, 1, 16, INT4_BLOCK + 3, BLOCK - 1, BLOCK, 3 * BLOCK + 48]


@pytest.fixture(params=range(chunk_kernels().highest_level + 1))
def kernels(request: pytest.FixtureRequest) -> ChunkKernels:
    return ChunkKernels(build_kernels.load(SOURCE), request.param)


def numbers(elements: int, seed: int = 0) -> Tensor:
    """Return numbers of all magnitudes, with halves between two steps and bfloat16 ties."""
    generator = torch.Generator().manual_seed(elements + seed)
    wide = torch.randn(elements, generator=generator)
    powers = torch.randint(-149, 120, (elements // BLOCK + 1,), generator=generator)
    wide *= 2.0 ** powers[torch.arange(elements) // BLOCK]
    wide[::7] = (wide[::7] * 16).round() / 16
    wide[::11] = (wide.view(torch.int32)[::11] & ~0xFFFF | 0x8000).view(torch.float32)
    return wide


def rounded(block: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Encode numbers that share a scale: return the scale's bytes, the steps, and the decoded
    numbers."""
    largest = block.abs().max().numpy()
    scale = torch.tensor(largest * numpy.float32(1 / most)).bfloat16().float().numpy()
    scale = numpy.float32(0) if scale < numpy.float32(2.0**-100) else scale
    inverse = numpy.float32(1) / scale if scale > 0 else numpy.float32(0)
    steps = numpy.rint(block.numpy() * inverse)
    stored = torch.tensor([float(scale)]).bfloat16().view(torch.uint8)
    return stored, torch.from_numpy(steps.astype(numpy.int8)), torch.from_numpy(steps * scale)


def pairs(steps: Tensor) -> Tensor:
    """Two steps a byte, of a block's first half and its second."""
    half = (steps.numel() + 1) // 2
    low, high = torch.zeros(half, dtype=torch.uint8) + 8, torch.zeros(half, dtype=torch.uint8) + 8
    low += steps[:half].view(torch.uint8)
    high[: steps.numel() - half] += steps[half:].view(torch.uint8)
    return low | high << 4


def reference(name: str, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the encoded bytes and the decoded numbers."""
    if name in ("int8", "int4") and values.numel():
        block, most = (BLOCK, 127) if name == "int8" else (INT4_BLOCK, 7)
        scales, steps, back = zip(
            *(rounded(each, most) for each in values.split(block)), strict=True
        )
        packed = [each.view(torch.uint8) if name == "int8" else pairs(each) for each in steps]
        return torch.cat([*scales, *packed]), torch.cat(back)
    if name == "bfloat16":
        return values.bfloat16().view(torch.uint8), values.bfloat16().float()
    assert name == "float32" or not values.numel(), f"write down the formula of {name} here"
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


# ---- there and back


def decoded(wire: Tensor, elements: int, codec: Codec) -> Tensor:
    out = torch.full((elements,), float("nan"))
    codec.decode(wire, out)
    return out


@pytest.mark.parametrize("codec", [Int8(), Int4()], ids=["int8", "int4"])
def test_the_largest_number_is_held_and_zeros_of_both_signs(codec: Codec) -> None:
    largest = torch.full((64,), torch.finfo(torch.float32).max)
    back = decoded(wire_of(largest, codec), 64, codec)
    torch.testing.assert_close(back, largest, rtol=5e-3, atol=0.0)
    zeros = decoded(wire_of(torch.tensor([0.0, -0.0] * BLOCK), codec), 2 * BLOCK, codec)
    assert not zeros.view(torch.int32).any()


# ---- what no encoder writes


@pytest.mark.parametrize("scale", [0x7F80, 0xFF80, 0x7FC0])
@pytest.mark.parametrize(("codec", "step"), [(Int8(), 0), (Int8(), 1), (Int4(), 0x88)])
def test_a_scale_that_is_no_number_is_refused(codec: Codec, step: int, scale: int) -> None:
    """The scales are infinities and a NaN; the steps do not matter."""
    wire = wire_of(torch.zeros(64), codec)
    wire.numpy()[:2].view(numpy.uint16)[0] = scale
    wire[2] = step
    with pytest.raises(NotFinite):
        decoded(wire, 64, codec)
