"""The sparse codec: as its description says, at every level of instructions, bit by bit; nothing
but what an encoder writes is decoded; and owners make the mean sparse in their own way."""

import os
import shlex
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from atom.base.build_kernels import FLAGS
from atom.swarm.exchange.codec import NotCanonical, NotFinite
from atom.swarm.exchange.sparse import CHUNK, KEPT, Sparse, highest_level
from tests.swarm.means import wire_of

SMALLEST = 2.0**-100
SPARSE = Sparse()


@pytest.fixture(params=range(highest_level() + 1))
def level(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# ---- what its description says, number by number


def mean_of(sizes: Tensor, chosen: Tensor) -> numpy.float32:
    """Return the mean of the chosen sizes: sums in fp32 over eight lanes, then of both halves, then
    in order."""
    lanes, total = numpy.zeros(8, dtype=numpy.float32), numpy.float32(0)
    for start in range(0, sizes.numel(), 8):
        piece = (sizes * chosen)[start : start + 8].numpy()
        lanes[: len(piece)] += piece
    for lane in lanes[:4] + lanes[4:]:
        total += lane
    return numpy.float32(total / numpy.float32(chosen.sum()))


def means_beside(sizes: Tensor, border: numpy.float32) -> tuple[numpy.float32, numpy.float32]:
    high = sizes > float(border)
    if high.all() or not high.any():
        high.fill_(True)
        return (mean_of(sizes, high),) * 2
    return mean_of(sizes, ~high), mean_of(sizes, high)


def levels(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return both levels in bfloat16, and a mask of the numbers with the high level."""
    border = mean_of(sizes, torch.ones_like(sizes, dtype=torch.bool))
    low, high = means_beside(sizes, border)
    for _ in range(4):
        border = low + (high - low) * numpy.float32(0.5)
        low, high = means_beside(sizes, border)
    both = torch.tensor([low, high]).bfloat16()
    return both, (sizes > float(border)) & (both[0] < both[1])


def golomb_rice(places: Tensor, low_bits: int) -> list[int]:
    gaps = (places - torch.cat([torch.tensor([-1]), places[:-1]]) - 1).tolist()
    lows = [gap >> bit & 1 for gap in gaps for bit in range(low_bits)]
    return lows + [bit for gap in gaps for bit in [0] * (gap >> low_bits) + [1]]


def record(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a chunk's encoded bytes and the decoded numbers."""
    order = torch.argsort(values.abs(), descending=True, stable=True)[:KEPT]
    places = order[values[order].abs() >= SMALLEST].sort().values
    back, count = torch.zeros_like(values), torch.tensor([places.numel()]).short()
    if not places.numel():
        return count.view(torch.uint8), back
    both, highs = levels(values[places].abs())
    signs = values[places] < 0
    back[places] = both.float()[highs.long()] * torch.where(signs, -1.0, 1.0)
    bits = numpy.array([*signs, *highs, *golomb_rice(places, 3)], dtype=bool)
    packed = torch.from_numpy(numpy.packbits(bits, bitorder="little"))
    return torch.cat([count.view(torch.uint8), both.view(torch.uint8), packed]), back


def numbers(elements: int, seed: int = 0) -> Tensor:
    """Return numbers of several magnitudes, with equal ones and zeros; some chunks are as good as
    zero."""
    generator = torch.Generator().manual_seed(elements + seed)
    values = torch.randn(elements, generator=generator)
    powers = torch.randint(-140, 90, (elements // CHUNK + 1,), generator=generator)
    values *= 2.0 ** powers[torch.arange(elements) // CHUNK]
    values[::3] = (values.view(torch.int32)[::3] & ~0xFFFFF).view(torch.float32)
    values[::5] = 0
    return values


@pytest.mark.parametrize("elements", [0, 16, 48, 1040, CHUNK, 6 * CHUNK + 496])
def test_sparse_follows_its_description(level: int, elements: int) -> None:
    values, own = numbers(elements), numbers(elements, 1)
    records, back = torch.zeros(0, dtype=torch.uint8), torch.zeros(0)
    for chunk in values.split(CHUNK) if elements else ():
        of_chunk, numbers_back = record(chunk)
        records, back = torch.cat([records, of_chunk]), torch.cat([back, numbers_back])
    codec = Sparse(level)
    most = codec.wire_bytes(elements)
    wire = torch.full((most + 64,), 0xA5, dtype=torch.uint8)
    lost, arrived, total = (torch.empty(elements) for _ in range(3))
    size = codec.encode(values, wire, lost).numel()
    assert records.numel() == size <= most
    assert torch.equal(wire[:size], records)
    assert (wire[size:] == 0xA5).all(), "nothing is written beyond"
    codec.decode(records, arrived)
    assert torch.equal(arrived, back)
    assert torch.equal(lost, values - back)
    for factor in (1.0, 1 / 3):
        expected = (back + own) * torch.tensor(factor)
        codec.add(records, own, factor, total)
        assert torch.equal(total, expected)
        same = own.clone()
        codec.add(records, same, factor, same)
        assert torch.equal(same, expected)


@pytest.mark.parametrize("elements", [16, 320, CHUNK])
def test_sparse_takes_at_most_what_it_says(elements: int) -> None:
    """The largest gaps that there may be: all in the last places, and one far before them."""
    values = torch.zeros(elements)
    values[-KEPT:] = 1.0
    values[0] = 2.0
    assert wire_of(values, SPARSE).numel() <= SPARSE.wire_bytes(elements) <= 4 * elements


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_sparse_what_is_not_finite_is_noticed(level: int, poison: float) -> None:
    codec, good, out = Sparse(level), torch.ones(2 * CHUNK), torch.empty(2 * CHUNK)
    records = wire_of(good, codec)
    for place in (0, 70, CHUNK - 1, CHUNK + 5):
        bad = good.clone()
        bad[place] = poison
        with pytest.raises(NotFinite):
            wire_of(bad, codec)
        for target in (out, bad):
            with pytest.raises(NotFinite):
                codec.add(records, bad, 0.5, target)
    huge = torch.full((CHUNK,), 3.4e38)
    with pytest.raises(NotFinite):
        wire_of(huge, codec)
    with pytest.raises(NotFinite):
        codec.add(records, torch.full((2 * CHUNK,), 3.4e38), 2.0, out)


# ---- nothing but what an encoder writes


def packed(count: int, low: int, high: int, bits: str) -> bytes:
    """A record; bits from the first on."""
    raw = numpy.packbits(numpy.array([bit == "1" for bit in bits], dtype=bool), bitorder="little")
    return numpy.array([count, low, high], dtype=numpy.uint16).tobytes() + raw.tobytes()


ONE, TWO, FAINT = 0x3F80, 0x4000, 0x0D00
AT_3, AT_3_AND_4 = "110" + "1", "110" + "000" + "11"
"""Low bits, then unary: places of one number and of two."""


def test_sparse_what_an_encoder_writes_by_hand() -> None:
    values = torch.zeros(CHUNK)
    values[3], values[4] = -2, 1
    assert bytes(wire_of(values, SPARSE).numpy()) == packed(2, ONE, TWO, "1010" + AT_3_AND_4)
    values[3] = 1
    assert bytes(wire_of(values, SPARSE).numpy()) == packed(2, ONE, ONE, "0000" + AT_3_AND_4)


@pytest.mark.parametrize(
    ("wire", "problem"),
    {
        "nothing": (b"", NotCanonical),
        "half a count": (b"\0", NotCanonical),
        "more than are kept": (packed(257, ONE, ONE, "0" * 1285 + "1" * 257), NotCanonical),
        "no levels": (packed(1, ONE, ONE, "")[:4], NotCanonical),
        "no places": (packed(1, ONE, ONE, "00"), NotCanonical),
        "an infinite level": (packed(1, 0x7F80, 0x7F80, "00" + AT_3), NotFinite),
        "no number": (packed(1, ONE, 0x7FC0, "00" + AT_3), NotFinite),
        "minus infinity": (packed(1, 0xFF80, ONE, "00" + AT_3), NotFinite),
        "a negative level": (packed(1, ONE | 0x8000, ONE, "00" + AT_3), NotCanonical),
        "negative levels": (packed(1, 0xBF80, 0xBF80, "00" + AT_3), NotCanonical),
        "a level that counts as 0": (packed(1, FAINT, FAINT, "00" + AT_3), NotCanonical),
        "levels of 0": (packed(1, 0, 0, "00" + AT_3), NotCanonical),
        "levels the wrong way round": (packed(2, TWO, ONE, "00" "10" + AT_3_AND_4), NotCanonical),
        "one level, told as high": (packed(1, ONE, ONE, "01" + AT_3), NotCanonical),
        "two levels, only low": (packed(2, ONE, TWO, "00" "00" + AT_3_AND_4), NotCanonical),
        "two levels, only high": (packed(2, ONE, TWO, "00" "11" + AT_3_AND_4), NotCanonical),
        "two levels of one": (packed(1, ONE, TWO, "01" + AT_3), NotCanonical),
        "a place out of range": (packed(1, ONE, ONE, "00" "000" + "0" * 512 + "1"), NotCanonical),
        "a second out of range": (
            packed(2, ONE, ONE, "00" "00" "111" "000" + "0" * 511 + "11"), NotCanonical
        ),
        "a place without end": (packed(1, ONE, ONE, "00" "000" + "0" * 27), NotCanonical),
        "padding that is not 0": (packed(1, ONE, ONE, "00" + AT_3 + "00000001"), NotCanonical),
        "a byte too many": (packed(1, ONE, ONE, "00" + AT_3) + b"\0", NotCanonical),
        "a record too many": (packed(1, ONE, ONE, "00" + AT_3) + b"\0\0", NotCanonical),
    }.values(),
)  # fmt: skip
def test_sparse_what_no_encoder_writes_is_refused(
    level: int, wire: bytes, problem: type[Exception]
) -> None:
    """Gaps are never negative: an unsorted place or one that comes twice cannot be said."""
    codec, numbers = Sparse(level), torch.zeros(CHUNK)
    raw = torch.tensor(list(wire), dtype=torch.uint8)
    with pytest.raises(problem):
        codec.decode(raw, numbers)
    with pytest.raises(problem):
        codec.add(raw, numbers, 1.0, numbers)


# ---- mutated encodings and random bytes, in a program whose memory ends where none may be touched


PROGRAM = Path(__file__).with_name("sparse_fuzz.c")
INPUTS = 60_000


def test_sparse_no_bytes_lead_beyond_memory_or_have_two_forms(tmp_path: Path) -> None:
    """The program ends with another code if one does."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    flags = [flag for flag in FLAGS if flag != "-shared"]
    program = tmp_path / "sparse_fuzz"
    subprocess.run([*compiler, *flags, str(PROGRAM), "-o", str(program), "-lm"], check=True)
    done = subprocess.run(
        [program, str(INPUTS), "1"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    total, decoded, refused = (int(word) for word in done.stdout.split() if word.isdigit())
    assert total == INPUTS == decoded + refused
    assert min(decoded, refused) > INPUTS / 100
