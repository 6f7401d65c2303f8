"""Encoded means: they decode to the same numbers everywhere, and malformed ones are refused."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atom.base.errors import Reason
from atom.swarm.exchange.codec import EXACT, Codec, Int4
from atom.swarm.exchange.encoded import CHUNKS, WIRES, EncodedMean
from atom.swarm.exchange.plans import MOST_ELEMENTS
from atom.swarm.exchange.sparse import Sparse
from tests.swarm.means import encoded
from tests.swarm.refusals import refusal
from tests.swarm.threaded_ring import ELEMENTS, Make, sources

NUMBERS = 64


def with_chunks(*told: int) -> Callable[[EncodedMean], dict[str, Tensor]]:
    return lambda mean: {WIRES: mean.wires, CHUNKS: torch.tensor(told, dtype=torch.int64)}


FORGED: dict[str, tuple[Callable[[EncodedMean], dict[str, Tensor]], Reason]] = {
    "no chunks": (lambda mean: {WIRES: mean.wires}, Reason.MALFORMED),
    "chunks of another type": (
        lambda mean: {WIRES: mean.wires, CHUNKS: mean.chunks.int()}, Reason.MALFORMED,
    ),
    "half a chunk": (with_chunks(NUMBERS), Reason.MALFORMED),
    "too few elements": (with_chunks(48, 26), Reason.MALFORMED),
    "too few bytes": (with_chunks(NUMBERS, 33), Reason.MALFORMED),
    "bytes of another codec": (with_chunks(16, 17, 48, 17), Reason.MALFORMED),
    "an odd chunk": (with_chunks(63, 34, 1, 0), Reason.MALFORMED),
    "nothing": (with_chunks(NUMBERS, 34, 0, 0), Reason.MALFORMED),
    "less than nothing": (with_chunks(2 * NUMBERS, 68, -NUMBERS, -34), Reason.MALFORMED),
    "more chunks than can be": (with_chunks(*[16, 10] * 5), Reason.MALFORMED),
    "numbers that are none": (
        lambda mean: {WIRES: mean.wires.fill_(0xFF), CHUNKS: mean.chunks}, Reason.NOT_FINITE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("forge", "reason"), FORGED.values(), ids=FORGED)
def test_what_no_exchange_leaves_is_refused(
    forge: Callable[[EncodedMean], dict[str, Tensor]], reason: Reason
) -> None:
    mean = encoded(torch.ones(NUMBERS), Int4())
    assert mean.chunks.tolist() == [NUMBERS, 34]
    mean.check(Int4(), NUMBERS)
    assert refusal(lambda: EncodedMean.of(forge(mean)).check(Int4(), NUMBERS)) is reason
    if reason is Reason.MALFORMED:
        assert refusal(lambda: EncodedMean.of(forge(mean)).numbers(Int4(), NUMBERS)) is reason


@pytest.mark.parametrize("codec", [EXACT, Int4(), Sparse()], ids=lambda each: each.name)
def test_any_stretch_can_be_read_by_itself(swarm_of: Make, codec: Codec) -> None:
    swarm = swarm_of(3, (1, 2, 0))
    mean, kept = swarm.average(sources(3, ELEMENTS), codec=codec), swarm.kept[0]
    assert kept.wires.numel() <= 1.01 * codec.wire_bytes(ELEMENTS)
    numbers, size = kept.numbers(codec, ELEMENTS), int(kept.chunks[0])
    assert (numbers.numel(), numbers.dtype) == (ELEMENTS, torch.float32)
    ends = [0, 1, size - 1, size, size + 1, 3 * size, ELEMENTS - 1, ELEMENTS]
    for start, stop in itertools.combinations_with_replacement(ends, 2):
        assert torch.equal(numbers[start:stop], mean[start:stop])
    assert encoded(torch.empty(0), codec).numbers(codec, 0)[:].numel() == 0


def test_what_no_encoder_writes_is_refused() -> None:
    mean = encoded(torch.ones(NUMBERS), Sparse())
    mean.wires.fill_(0x7F)
    assert refusal(mean.check, Sparse(), NUMBERS) is Reason.MALFORMED
    odd = EncodedMean(torch.zeros(66, dtype=torch.uint8), torch.tensor([16, 66]))
    assert refusal(odd.check, EXACT, 16) is Reason.MALFORMED


def test_a_chunk_is_no_larger_than_any_plan_has_it() -> None:
    """A check of a stranger's mean therefore takes little memory."""
    elements = MOST_ELEMENTS + 16
    size = Int4().wire_bytes(elements)
    whole = EncodedMean(torch.zeros(size, dtype=torch.uint8), torch.tensor([elements, size]))
    assert refusal(whole.check, Int4(), elements) is Reason.MALFORMED
