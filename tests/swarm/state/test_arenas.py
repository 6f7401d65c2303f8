"""Digests name contents: any change of bytes, type, length or name shows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    BlobManifest,
    arena_digest,
    bytes_of,
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


def test_digests_see_bytes_type_and_length() -> None:
    base = arena(16)
    variants = [base, base + 1, arena(32), base.double(), base.view(torch.uint8), -torch.zeros(16)]
    digests = [arena_digest(tensor) for tensor in [*variants, torch.zeros(16)]]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 for digest in digests)
    assert arena_digest(base.clone()) == digests[0]


def test_the_state_digest_sees_names_but_not_order() -> None:
    one, two = arena(16), arena(32)
    digest = state_digest({"a": one, "b": two})
    assert digest == state_digest({"b": two, "a": one})
    assert digest != state_digest({"a": two, "b": one})
    assert digest != state_digest({"a": one})
    assert digest == BlobManifest((describe("a", one), describe("b", two))).digest()


def test_bytes_are_the_tensors_own_memory() -> None:
    tensor = torch.zeros(2, 2)
    bytes_of(tensor)[0:4] = b"\x00\x00\x80\x3f"
    assert tensor[0, 0] == 1.0


def test_a_manifest_survives_the_wire() -> None:
    parts = (describe("empty", torch.empty(0, dtype=torch.bfloat16)), describe("w", arena()))
    manifest = BlobManifest(parts)
    arrived = decode_manifest(schema.encode(manifest), manifest.byte_count)
    assert arrived == manifest
    assert arrived.digest() == state_digest({"w": arena(), "empty": torch.empty(0).bfloat16()})


def test_a_manifest_is_bounded() -> None:
    good = describe("w", arena(16))
    manifest = BlobManifest((good,))
    assert (
        refusal(decode_manifest, schema.encode(manifest), manifest.byte_count - 1)
        is Reason.TOO_LARGE
    )
    bad = [
        BlobManifest((describe("x" * 300, arena(16)),)),
        BlobManifest((good, good)),
        BlobManifest((good, describe("a", arena(16)))),
    ]
    for wrong in bad:
        assert refusal(decode_manifest, schema.encode(wrong), 1 << 30) is Reason.MALFORMED


def test_an_arena_that_claims_too_much_is_refused() -> None:
    message = schema.encode(BlobManifest((describe("w", arena(16)),)))
    for elements, reason in ((2**60, Reason.MALFORMED), (CHUNK * 2, Reason.MALFORMED)):
        huge = BlobManifest((describe("w", arena(16)),))
        object.__setattr__(huge.arenas[0], "elements", elements)
        assert schema.encode(huge) != message
        assert refusal(decode_manifest, schema.encode(huge), 1 << 62) is reason


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_manifests_raise_only_refusals(raw: bytes, appended: bool) -> None:
    start = schema.encode(BlobManifest((describe("w", arena(16)),))) if appended else b""
    try:
        manifest = decode_manifest(start + raw, 1 << 20)
    except PeerRefused:
        return
    assert decode_manifest(schema.encode(manifest), 1 << 20) == manifest
