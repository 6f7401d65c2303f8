import contextlib
import random
import zlib
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swarm_samples import a_lease, a_manifest

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain.commit import Branch
from atom.swarm.identity import Identity
from atom.swarm.records.codec import (
    MAX_LEASE_BYTES,
    MAX_RECORD_BYTES,
    LeaseBody,
    SignedRecord,
    decode_lease,
    decode_manifest,
    encode_lease,
    encode_manifest,
    lease_key,
    read_claim,
)
from atom.swarm.records.lease import (
    MAX_ADDRESSES,
    MAX_ENDED_ATTEMPTS,
    MAX_LINKS,
    MAX_LOSS,
    MAX_RATE,
    MAX_TEXT_CHARACTERS,
    SHOWN,
    EndedAttempt,
    Link,
    NamedLink,
    PeerState,
    Reached,
)
from atom.swarm.records.manifest import DataAmount, Manifest, PackageVersion, manifest_digest
from tests.swarm.refusals import refusal

OWNER = Identity.create()
PEER = Identity.create()
RUN = "shakespeare"
PLACE = RUN, OWNER.peer_id


def encoded(expires_at=100.0, **changes):
    return encode_lease(a_lease(PEER.peer_id, **changes), *PLACE, PEER, expires_at)


def signed(kind, payload, identity):
    return schema.encode(SignedRecord(kind, payload, identity.sign(kind, payload)))


def signed_lease(identity=PEER, run=RUN, owner=OWNER.peer_id, expires_at=100.0, **changes):
    """Whatever its fields are."""
    body = LeaseBody(run, owner, expires_at, replace(a_lease(PEER.peer_id), **changes))
    return signed("lease", schema.encode(body), identity)


def payload_of(record):
    return schema.decode(SignedRecord, record, len(record)).payload


def test_a_lease_survives_the_journey():
    links = (NamedLink(b"12345678", Link(0.125, 1e6)), NamedLink(b"87654321", Link(0.25)))
    attempts = (EndedAttempt(7, Reason.RING_BROKEN), EndedAttempt(7, "bored"))
    for changes in (
        {},
        {"loss": None, "head": b"", "state_digest": b"", "addresses": ()},
        {"reached": Reached.NO, "links": links},
        {"ended_attempts": attempts},
        {"branches": (Branch(7, 3, b"12345678"),), "branches_before": 2},
        {"void_passes": 12, "void_cause": "loss-not-finite"},
    ):
        lease = a_lease(PEER.peer_id, **changes)
        assert decode_lease(encoded(**changes)) == lease


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 2 * MAX_LOSS, -1e308])
def test_a_loss_that_others_refuse_is_not_shown(loss):
    """It is the round's, made by its members: none of the honest may drop out of sight for it."""
    assert decode_lease(encoded(loss=loss)).loss is None


def test_a_lease_has_room_for_every_field_at_its_longest_and_for_nothing_else():
    """Fields that nobody knows are no reason to refuse it, but many have to fit into one answer."""
    whole, unknown_field = payload_of(encoded()), b"\xc2\x3e"
    for size_bytes, refused in ((2000, False), (4000, True)):
        padding = unknown_field + bytes([size_bytes % 128 | 128, size_bytes // 128])
        record = signed("lease", whole + padding + bytes(size_bytes), PEER)
        if refused:
            assert refusal(read_claim, record) == Reason.TOO_LARGE
        else:
            assert decode_lease(record).peer_id == PEER.peer_id
    assert len(encoded(**_longest())) < MAX_LEASE_BYTES


def _longest():
    most, reason = 2**63 - 1, max(Reason, key=lambda each: len(each.value))
    counts = ("serial", "round", "sequences", "branches_before", "void_passes")
    return dict.fromkeys(counts, most) | {
        "state": max(PeerState, key=len),
        "addresses": ("a" * MAX_TEXT_CHARACTERS,) * MAX_ADDRESSES,
        "links": (NamedLink(bytes(8), Link(1.0, 1e9)),) * MAX_LINKS,
        "ended_attempts": (EndedAttempt(most, reason),) * MAX_ENDED_ATTEMPTS,
        "branches": (Branch(most, 9, bytes(8)),) * SHOWN,
        "void_cause": "a" * 32,
    }


def test_a_lease_signed_by_somebody_else_is_refused():
    record = signed_lease(OWNER)
    assert refusal(read_claim, record) == Reason.BAD_SIGNATURE


def test_a_signature_for_another_purpose_is_refused():
    payload = payload_of(encoded())
    record = SignedRecord("lease", payload, PEER.sign("manifest", payload))
    assert refusal(read_claim, schema.encode(record)) == Reason.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sequences_per_s": float("nan")}, Reason.NOT_FINITE),
        ({"tokens_per_s": float("inf")}, Reason.NOT_FINITE),
        ({"loss": float("-inf")}, Reason.NOT_FINITE),
        ({"issued_at": float("nan")}, Reason.NOT_FINITE),
        ({"pass_seconds": -1.0}, Reason.MALFORMED),
        ({"tokens_per_s": 1e308}, Reason.MALFORMED),
        ({"sequences_per_s": 2 * MAX_RATE}, Reason.MALFORMED),
        ({"issued_at": 2 * MAX_RATE}, Reason.MALFORMED),
        ({"loss": 1e308}, Reason.MALFORMED),
        ({"loss": -2 * MAX_LOSS}, Reason.MALFORMED),
        ({"sequences": 2**63}, Reason.MALFORMED),
        ({"incarnation": b"short"}, Reason.MALFORMED),
        ({"head": b"short"}, Reason.MALFORMED),
        ({"state_digest": b"x" * 33}, Reason.MALFORMED),
        ({"state": "asleep"}, Reason.MALFORMED),
        ({"addresses": ["a:1"] * 9}, Reason.TOO_LARGE),
        ({"addresses": ["a" * 129]}, Reason.MALFORMED),
        ({"addresses": ["a\x1b[2J:1"]}, Reason.MALFORMED),
        ({"addresses": ["a" * 9000]}, Reason.TOO_LARGE),
        ({"reached": "perhaps"}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(1.0))] * 17}, Reason.TOO_LARGE),
        ({"links": [NamedLink(bytes(7), Link(1.0))]}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(-1.0))]}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(float("nan")))]}, Reason.NOT_FINITE),
        ({"links": [NamedLink(bytes(8), Link(1.0, 2 * MAX_RATE))]}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(1.0, 1.4e-45))]}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(1e5))]}, Reason.MALFORMED),
        ({"links": [NamedLink(bytes(8), Link(1.0, float("nan")))]}, Reason.NOT_FINITE),
        ({"ended_attempts": [EndedAttempt(1, "early")] * 5}, Reason.TOO_LARGE),
        ({"ended_attempts": [EndedAttempt(2**63, "early")]}, Reason.MALFORMED),
        ({"branches": [Branch(1, 1, bytes(8))] * 9}, Reason.TOO_LARGE),
        ({"branches": [Branch(1, 1, bytes(7))]}, Reason.MALFORMED),
        ({"branches": [Branch(2**63, 1, bytes(8))]}, Reason.MALFORMED),
        ({"branches_before": 2**63}, Reason.MALFORMED),
        ({"void_passes": 2**63}, Reason.MALFORMED),
        ({"run": "../etc"}, Reason.MALFORMED),
        ({"owner": "nobody"}, Reason.MALFORMED),
        ({"peer_id": PEER.peer_id + " "}, Reason.MALFORMED),
        ({"peer_id": "Qm" + "1" * 200}, Reason.MALFORMED),
    ],
)
def test_well_signed_nonsense_is_refused_with_its_reason(changes, reason):
    record = signed_lease(**changes)
    assert refusal(read_claim, record) == reason


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise):
    for decode in (read_claim, decode_lease):
        with pytest.raises(PeerRefused):
            decode(noise)
    with pytest.raises(PeerRefused):
        decode_manifest(noise, RUN)


def test_every_flipped_bit_is_noticed_or_harmless():
    record = encoded()
    lease = decode_lease(record)
    chance = random.Random(1)
    for _ in range(300):
        position = chance.randrange(len(record) * 8)
        flipped = bytearray(record)
        flipped[position // 8] ^= 1 << position % 8
        with contextlib.suppress(PeerRefused):
            assert read_claim(bytes(flipped)) == read_claim(record)
            assert decode_lease(bytes(flipped)) == lease


def test_a_manifest_survives_the_journey_and_keeps_its_name():
    manifest = a_manifest(OWNER, run_file="# comment\n" * 5000)
    record = encode_manifest(manifest, OWNER)
    assert len(record) < MAX_RECORD_BYTES
    assert decode_manifest(record, RUN) == manifest
    assert decode_manifest(record, RUN, OWNER.peer_id) == manifest
    assert manifest_digest(decode_manifest(record, RUN)) == manifest_digest(manifest)
    assert len(manifest_digest(manifest)) == 32


def test_every_field_of_a_manifest_is_part_of_its_digest():
    manifest = a_manifest(OWNER)
    other = Manifest(
        "r", "o", "f", "g", "p", (PackageVersion("a", "1"),), "d", b"1" * 32, b"2" * 16, 3.0,
        DataAmount(3, 2, 1),
    )  # fmt: skip
    changed = {
        manifest_digest(replace(manifest, **{field.name: getattr(other, field.name)}))
        for field in fields(Manifest)
    }
    assert len(changed | {manifest_digest(manifest)}) == len(fields(Manifest)) + 1


def test_how_much_data_a_run_has_is_told_and_bounded():
    silent = a_manifest(OWNER)
    telling = a_manifest(OWNER, data_amount=DataAmount(1880, 234, 0))
    for manifest in (silent, telling):
        assert decode_manifest(encode_manifest(manifest, OWNER), RUN) == manifest
    beyond = encode_manifest(a_manifest(OWNER, data_amount=DataAmount(2**53 + 1, 1, 0)), OWNER)
    assert refusal(decode_manifest, beyond, RUN) == Reason.MALFORMED


def test_a_manifest_of_another_run_or_owner_is_refused():
    record = encode_manifest(a_manifest(OWNER), OWNER)
    assert refusal(decode_manifest, record, "other") == Reason.WRONG_RUN
    assert refusal(decode_manifest, record, RUN, PEER.peer_id) == Reason.WRONG_RUN
    forged = signed("manifest", payload_of(record), PEER)
    assert refusal(decode_manifest, forged, RUN) == Reason.BAD_SIGNATURE
    assert refusal(decode_manifest, encoded(), RUN) == Reason.MALFORMED


WHOLE = payload_of(encode_manifest(a_manifest(OWNER), OWNER))


@pytest.mark.parametrize(
    ("compressed", "reason"),
    [
        (zlib.compress(b"0" * 1_000_000), Reason.TOO_LARGE),  # a bomb
        (random.Random(0).randbytes(9000), Reason.MALFORMED),
        (zlib.compress(schema.encode(a_manifest(OWNER, run_file="0" * 70_000))), Reason.MALFORMED),
        (WHOLE[:-2], Reason.MALFORMED),
        (WHOLE + b"more", Reason.MALFORMED),
        (zlib.compress(b"\xff\xfe"), Reason.MALFORMED),
        (b"text", Reason.MALFORMED),
    ],
)
def test_a_manifest_that_does_not_unpack_within_bounds_is_refused(compressed, reason):
    assert refusal(decode_manifest, signed("manifest", compressed, OWNER), RUN) in (
        reason, Reason.TOO_LARGE,
    )  # fmt: skip


def test_a_run_file_too_large_for_the_dht_is_the_users_error():
    noise = random.Random(0).randbytes(10_000).hex()
    for run_file in (noise, "0" * 70_000):
        with pytest.raises(ConfigError) as caught:
            encode_manifest(a_manifest(OWNER, run_file=run_file), OWNER)
        assert caught.value.hint


def test_a_record_says_where_it_may_be_stored_and_until_when():
    lease = read_claim(encoded(expires_at=123.25))
    assert (lease.author, lease.expires_at) == (PEER.peer_id, 123.25)
    assert lease.places == (f"atom/3/{RUN}/{OWNER.peer_id}/lease",) == (lease_key(*PLACE),)
    manifest = read_claim(encode_manifest(a_manifest(OWNER), OWNER))
    assert manifest.author == OWNER.peer_id
    assert manifest.expires_at is None
    assert manifest.places == (
        f"atom/3/{RUN}/{OWNER.peer_id}/manifest", f"atom/3/{RUN}/index"
    )  # fmt: skip
