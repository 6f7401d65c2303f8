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
from atom.swarm.exchange.codec import INT4_BLOCK, Codec, Int4, Int8, codec_named
from atom.swarm.exchange.codec import INT8_BLOCK as BLOCK

SIZES = [0, 1, 16, INT4_BLOCK + 3, BLOCK - 1, BLOCK, 3 * BLOCK + 48]


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


def rounded(block: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of numbers that share a scale: the scale's bytes, the steps, and what they stand for."""
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
    """The bytes, and what they stand for."""
    if name in ("int8", "int4") and values.numel():
        block, most = (BLOCK, 127) if name == "int8" else (INT4_BLOCK, 7)
        scales, steps, back = zip(
            *(rounded(each, most) for each in values.split(block)), strict=True
        )
        packed = [each.view(torch.uint8) if name == "int8" else pairs(each) for each in steps]
        return torch.cat([*scales, *packed]), torch.cat(back)
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


@pytest.mark.parametrize("codec", [Int8(), Int4()], ids=["int8", "int4"])
def test_the_largest_number_is_held_and_zeros_of_both_signs(codec: Codec) -> None:
    largest = torch.full((64,), torch.finfo(torch.float32).max)
    back = decoded(encoded(largest, codec), 64, codec)
    torch.testing.assert_close(back, largest, rtol=5e-3, atol=0.0)
    zeros = decoded(encoded(torch.tensor([0.0, -0.0] * BLOCK), codec), 2 * BLOCK, codec)
    assert not zeros.view(torch.int32).any()


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


INT4 = Int4()


@pytest.mark.parametrize(
    ("scale", "bytes_", "problem"),
    [
        *((scale, (0x8F,), NotFinite) for scale in (0x7F80, 0xFF80, 0x7FC0)),
        (ONE, (0x8E,), NotCanonical), (ONE, (0x88,), NotCanonical),
        (ONE, (0x80, 0xF8), NotCanonical), (ONE, (0x08, 0xF8), NotCanonical),
        (ONE | 0x8000, (0x8F,), NotCanonical),
        (FAINT, (0x8F,), NotCanonical), (0, (0x89,), NotCanonical), (0, (0x98,), NotCanonical),
        (0x8000, (0x88,), NotCanonical), (ONE, (0x8F, 0x88, 0x98), NotCanonical),
    ],
)  # fmt: skip
def test_int4_what_no_encoder_writes_is_refused(
    scale: int, bytes_: tuple[int, ...], problem: type[Exception]
) -> None:
    """The last one is a step of a number that is not there: of five, three have the low bits."""
    wire = encoded(torch.zeros(5), INT4)
    wire.numpy()[:2].view(numpy.uint16)[0] = scale
    wire[2 : 2 + len(bytes_)] = torch.tensor(bytes_, dtype=torch.uint8)
    with pytest.raises(problem):
        decoded(wire, 5, INT4)


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


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 0xFFFF), st.binary(min_size=20, max_size=20))
def test_int4_what_is_decoded_would_be_written_the_same(scale: int, steps: bytes) -> None:
    wire = encoded(torch.zeros(40), INT4)
    wire.numpy()[:2].view(numpy.uint16)[0] = scale
    wire[2:] = torch.frombuffer(bytearray(steps), dtype=torch.uint8)
    try:
        values = decoded(wire, 40, INT4)
    except (NotCanonical, NotFinite):
        return
    assert torch.equal(encoded(values, INT4), wire)
