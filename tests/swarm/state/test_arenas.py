"""Digests name contents: any change of bytes, type, length or name shows."""

from dataclasses import replace

import pytest
import torch

from atom.base.errors import Reason
from atom.swarm import schema
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    BlobManifest,
    decode_manifest,
    describe,
    state_digest,
)
from tests.swarm.refusals import refusal

CHUNK = CHUNK_BYTES // 4


def arena(elements: int = 2 * CHUNK + 5) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.float32)


def test_every_chunk_has_its_digest() -> None:
    described = describe("w", arena())
    assert (described.chunks, len(described.chunk_digests)) == (3, 96)
    assert described.chunk_bounds(2) == (2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 20)
    changed = arena()
    changed[CHUNK] += 1
    other = describe("w", changed)
    same = [described.chunk_digest(i) == other.chunk_digest(i) for i in range(3)]
    assert same == [True, False, True]


def test_digests_see_bytes_type_length_and_names_but_not_order() -> None:
    base = arena(16)
    variants = [base, base + 1, arena(32), base.double(), base.view(torch.int32), -torch.zeros(16)]
    digests = [describe("", tensor).digest() for tensor in [*variants, torch.zeros(16)]]
    states = [{"a": base, "b": base + 1}, {"b": base, "a": base + 1}, {"a": base}, {"b": base}]
    digests += map(state_digest, states)
    assert len(set(digests)) == len(digests)
    assert state_digest({"b": base + 1, "a": base.clone()}) == state_digest(states[0])


GOOD = describe("w", arena(16))
WRONG = [
    ((GOOD,), 63, Reason.TOO_LARGE),
    ((GOOD, GOOD), 1 << 30, Reason.MALFORMED),
    ((GOOD, describe("a", arena(16))), 1 << 30, Reason.MALFORMED),
    ((replace(GOOD, elements=2**60),), 1 << 62, Reason.MALFORMED),
    ((replace(GOOD, elements=2 * CHUNK),), 1 << 62, Reason.MALFORMED),
]


@pytest.mark.parametrize(("arenas", "max_bytes", "reason"), WRONG)
def test_a_manifest_is_bounded(
    arenas: tuple[ArenaManifest, ...], max_bytes: int, reason: Reason
) -> None:
    raw = schema.encode(BlobManifest(arenas))
    assert refusal(decode_manifest, raw, max_bytes) is reason
