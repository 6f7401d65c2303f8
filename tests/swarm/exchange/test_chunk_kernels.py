"""The compiled loops against their formulas in NumPy and torch, at every level of instructions."""

import numpy
import pytest
import torch
from torch import Tensor

from atom.base import kernel_library
from atom.swarm.exchange.chunk_kernels import (
    FORMATS,
    SOURCE,
    ChunkKernels,
    NotFinite,
    chunk_kernels,
)
from atom.swarm.exchange.codec import INT8_BLOCK, codec_named

SIZES = [0, 1, 16, INT8_BLOCK - 1, INT8_BLOCK, 3 * INT8_BLOCK + 48]


@pytest.fixture(params=range(chunk_kernels().highest_level + 1))
def kernels(request: pytest.FixtureRequest) -> ChunkKernels:
    return ChunkKernels(kernel_library.load(SOURCE), request.param)


def numbers(elements: int, seed: int = 0) -> Tensor:
    """Of all magnitudes, halves between two steps and bfloat16 ties among them."""
    generator = torch.Generator().manual_seed(elements + seed)
    wide = torch.randn(elements, generator=generator)
    wide *= (
        2.0
        ** torch.randint(-60, 60, (elements // INT8_BLOCK + 1,), generator=generator)[
            torch.arange(elements) // INT8_BLOCK
        ]
    )
    wide[::7] = (wide[::7] * 16).round() / 16
    wide[::11] = (wide.view(torch.int32)[::11] & ~0xFFFF | 0x8000).view(torch.float32)
    return wide


def int8_reference(values: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes, and what they stand for; by blocks."""
    scales, steps, back = [], [], []
    for block in values.split(INT8_BLOCK):
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


@pytest.mark.parametrize("name", FORMATS[1:])
@pytest.mark.parametrize("elements", SIZES)
def test_codecs_follow_their_formula(kernels: ChunkKernels, name: str, elements: int) -> None:
    values, lost, back = numbers(elements), torch.empty(elements), torch.empty(elements)
    wire = torch.empty(codec_named(name).wire_bytes(elements), dtype=torch.uint8)
    kernels.encode(name, values, wire, lost)
    kernels.decode(name, wire, back)
    expected_wire, expected = reference(name, values)
    assert torch.equal(wire, expected_wire)
    assert torch.equal(back, expected)
    assert torch.equal(lost, values - expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("elements", SIZES)
def test_sums_are_one_rounding_and_means_another(
    kernels: ChunkKernels, name: str, elements: int
) -> None:
    wire, arrived = reference(name, numbers(elements))
    own, out = numbers(elements, 1), torch.empty(elements)
    kernels.add(name, wire, own, 1 / 3, out)
    assert torch.equal(out, (arrived + own) * torch.tensor(1 / 3))
    kernels.add(name, wire, own, 1 / 3, own)
    assert torch.equal(own, out)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_noticed_wherever_it_is(kernels: ChunkKernels, poison: float) -> None:
    for place in (0, 15, INT8_BLOCK + 1, 2 * INT8_BLOCK - 1):
        good, bad, out = torch.ones(2 * INT8_BLOCK), torch.ones(2 * INT8_BLOCK), torch.empty(2048)
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
    with pytest.raises(NotFinite):
        kernels.add("float32", huge, huge, 0.25, out)
    with pytest.raises(NotFinite):
        kernels.add("float32", huge, -huge / 2, 4.0, out)
    with pytest.raises(NotFinite):
        kernels.encode("bfloat16", huge, torch.empty(128, dtype=torch.uint8), None)


def test_eight_bits_hold_the_largest_number(kernels: ChunkKernels) -> None:
    largest, back = torch.full((64,), torch.finfo(torch.float32).max), torch.empty(64)
    wire = torch.empty(66, dtype=torch.uint8)
    kernels.encode("int8", largest, wire, None)
    kernels.decode("int8", wire, back)
    torch.testing.assert_close(back, largest, rtol=5e-3, atol=0.0)
