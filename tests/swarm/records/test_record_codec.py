import math
import random
import zlib
from dataclasses import make_dataclass, replace
from typing import Annotated, Any, NamedTuple, get_type_hints

import pytest

from atom.base.errors import ConfigError, Reason
from atom.config.model_and_data import MAX_TEXTS
from atom.swarm import schema
from atom.swarm.chain.commit import Branch
from atom.swarm.identity import Identity
from atom.swarm.records.lease import (
    MAX_ADDRESSES,
    MAX_LINKS,
    MAX_LOSS,
    MAX_SAMPLE_BYTES,
    MAX_TEXT_CHARACTERS,
    SHOWN,
    HowReached,
    Lease,
    Link,
    PeerState,
    Reached,
    RoundUse,
    SampleText,
    Validation,
)
from atom.swarm.records.manifest import (
    MAX_LEASE_BYTES,
    MAX_RECORD_BYTES,
    DataAmount,
    LeaseBody,
    decode_lease,
    decode_manifest,
    encode_lease,
    encode_manifest,
    manifest_digest,
    read_claim,
)
from tests.swarm.refusals import refusal
from tests.swarm.swarm_samples import a_lease, a_manifest, payload_of, signed

OWNER, PEER = Identity.create(), Identity.create()
RUN = "shakespeare"
PLACE = RUN, OWNER.peer_id
MOST = 2**63 - 1
NAME = bytes(8)
LINK = Link(NAME, 1.0, 1e9)


def encoded(expires_at: float = 100.0, **changes: Any) -> bytes:
    return encode_lease(a_lease(PEER.peer_id, **changes), *PLACE, PEER, expires_at)


LEASE = encoded()
MANIFEST = a_manifest(OWNER)
FOUNDED = encode_manifest(MANIFEST, OWNER)
LONGEST: dict[str, Any] = {
    **dict.fromkeys(("serial", "round", "sequences", "branches_before", "void_passes"), MOST),
    "state": max(PeerState, key=len),
    "addresses": ("a" * MAX_TEXT_CHARACTERS,) * MAX_ADDRESSES,
    "reached": Reached.YES,
    "reach": HowReached.PUNCHED,
    "links": (LINK,) * MAX_LINKS,
    "branches": (Branch(MOST, 9, NAME),) * SHOWN,
    "void_cause": "a" * 32,
    "last_round": RoundUse(1e15, 1.0, MOST, MOST, 1e15),
    "validation": Validation(MOST, MAX_LOSS, (-MAX_LOSS,) * MAX_TEXTS),
    "sample": SampleText(MOST, "a" * MAX_SAMPLE_BYTES),
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": None, "head": b"", "state_digest": b"", "addresses": ()},
        {"reached": Reached.NO, "links": (Link(b"87654321", 0.25),)},
        {"branches": (Branch(7, 3, b"12345678"),)},
        LONGEST,
    ],
)
def test_a_lease_survives_the_journey(changes: dict[str, Any]) -> None:
    record = encoded(**changes)
    assert decode_lease(record) == a_lease(PEER.peer_id, **changes)
    assert len(record) < MAX_LEASE_BYTES


@pytest.mark.parametrize("loss", [math.nan, math.inf, 2 * MAX_LOSS, -1e308])
def test_a_loss_that_others_refuse_is_not_shown(loss: float) -> None:
    """The loss comes from all members of a round: it must not make an honest peer's lease
    invalid."""
    assert decode_lease(encoded(loss=loss)).loss is None
    for validation in (Validation(3, loss), Validation(3, 1.0, (1.0, loss))):
        assert decode_lease(encoded(validation=validation)).validation is None


@pytest.mark.parametrize(("size_bytes", "refused"), [(2000, False), (MAX_LEASE_BYTES, True)])
def test_a_lease_of_a_newer_version_is_read_if_it_is_not_too_long(
    size_bytes: int, refused: bool
) -> None:
    unknown_field = b"\xc2\x3e" + bytes([size_bytes % 128 | 128, size_bytes // 128])
    record = signed("lease", payload_of(LEASE) + unknown_field + bytes(size_bytes), PEER)
    if refused:
        assert refusal(read_claim, record) == Reason.TOO_LARGE
    else:
        assert read_claim(record).author == PEER.peer_id


class EndedAttempt(NamedTuple):
    """Message in the leases of version 19."""

    round: int
    reason: Annotated[str, lambda text: True]


def test_a_lease_of_version_19_is_read_as_one_of_an_older_version() -> None:
    """It has messages where the version is now. If it were refused, its peer would be invisible,
    and no peer could report its other version."""
    kinds = get_type_hints(Lease, include_extras=True)
    kinds["version"] = Annotated[tuple[EndedAttempt, ...], 4]
    del kinds["reach"]
    shown = a_lease(PEER.peer_id, **LONGEST, name="box")
    values = vars(shown) | {"version": (EndedAttempt(3, "early"),)}
    old = make_dataclass("LeaseOf19", kinds.items())(*(values[name] for name in kinds))
    assert schema.decode(Lease, schema.encode(old), MAX_LEASE_BYTES) == replace(
        shown, version=0, reach=HowReached.UNKNOWN
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "../etc"}, Reason.MALFORMED),
        ({"owner": "nobody"}, Reason.MALFORMED),
        ({"expires_at": math.inf}, Reason.NOT_FINITE),
        ({"lease": a_lease("nobody")}, Reason.MALFORMED),
        *(
            ({"lease": a_lease(PEER.peer_id, sample=SampleText(1, text))}, Reason.MALFORMED)
            for text in ("a" * (MAX_SAMPLE_BYTES + 1), "a\x1b[2J", "two\nlines", "\u202eab")
        ),
        *(
            ({"lease": a_lease(PEER.peer_id, last_round=use)}, reason)
            for use, reason in [
                (RoundUse(10.0, 1.01, 0, 0), Reason.MALFORMED),
                (RoundUse(10.0, math.nan, 0, 0), Reason.NOT_FINITE),
                (RoundUse(10.0, 0.5, 0, 2**63), Reason.MALFORMED),
            ]
        ),
    ],
)
def test_well_signed_nonsense_is_refused(changes: dict[str, Any], reason: Reason) -> None:
    body = replace(LeaseBody(*PLACE, 100.0, a_lease(PEER.peer_id)), **changes)
    assert refusal(read_claim, signed("lease", schema.encode(body), PEER)) == reason


@pytest.mark.parametrize(
    "record",
    [
        signed("lease", payload_of(LEASE), OWNER),
        signed("lease", payload_of(LEASE), PEER, "manifest"),
        signed("manifest", payload_of(FOUNDED), PEER),
        signed("manifest", payload_of(FOUNDED), OWNER, "lease"),
    ],
)
def test_what_another_signed_or_for_another_purpose_is_refused(record: bytes) -> None:
    assert refusal(read_claim, record) == Reason.BAD_SIGNATURE


@pytest.mark.parametrize(
    "changes",
    [{"run_file": "# comment\n" * 5000}, {"data_amount": DataAmount(0, 234, 12)}, {"versions": ()}],
)
def test_a_manifest_survives_the_journey_and_keeps_its_name(changes: dict[str, Any]) -> None:
    manifest = a_manifest(OWNER, **changes)
    record = encode_manifest(manifest, OWNER)
    assert len(record) < MAX_RECORD_BYTES
    for run, owner in ((None, None), (RUN, None), PLACE):
        assert decode_manifest(record, run, owner) == manifest
    assert manifest_digest(decode_manifest(record, RUN)) == manifest_digest(manifest)
    assert manifest_digest(manifest) != manifest_digest(MANIFEST)


def test_a_manifest_of_another_run_or_owner_is_refused() -> None:
    assert refusal(decode_manifest, FOUNDED, "other") == Reason.WRONG_RUN
    assert refusal(decode_manifest, FOUNDED, RUN, PEER.peer_id) == Reason.WRONG_RUN
    assert refusal(decode_manifest, LEASE, RUN) == Reason.MALFORMED


@pytest.mark.parametrize(
    ("compressed", "reason"),
    [
        (zlib.compress(b"0" * 1_000_000), Reason.TOO_LARGE),  # a bomb
        (random.Random(0).randbytes(MAX_RECORD_BYTES + 1), Reason.TOO_LARGE),
        (payload_of(FOUNDED)[:-2], Reason.MALFORMED),
        (payload_of(FOUNDED) + b"more", Reason.MALFORMED),
        (zlib.compress(b"\xff\xfe"), Reason.MALFORMED),
        (b"text", Reason.MALFORMED),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_unpack_within_bounds_is_refused(
    compressed: bytes, reason: Reason
) -> None:
    assert refusal(decode_manifest, signed("manifest", compressed, OWNER), RUN) == reason


@pytest.mark.parametrize("run_file", [random.Random(0).randbytes(10_000).hex(), "0" * 70_000])
def test_a_run_file_too_large_for_the_dht_is_the_users_error(run_file: str) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_manifest(a_manifest(OWNER, run_file=run_file), OWNER)
    assert caught.value.hint
