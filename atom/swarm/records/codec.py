"""Leases and manifests to signed bytes and back. Every byte that comes in is a stranger's.

A record is bound to its place: author, run and owner are inside the signed payload, so it cannot
be replayed under another peer's name or into another run; a lease also carries its own expiry,
so it cannot be kept alive either.
"""

import math
import zlib

from google.protobuf.message import DecodeError

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
from atom.config.run_name import RUN_NAME
from atom.swarm.chain.commit import Head, Voter, canonical_digest, genesis
from atom.swarm.identity import Identity, is_peer_id, verify
from atom.swarm.records.fields import check_digest, incarnation_of, text_of
from atom.swarm.records.keys import LEASE_DOMAIN, MANIFEST_DOMAIN, Claim
from atom.swarm.records.lease import Lease
from atom.swarm.records.lease_body import from_body, to_body
from atom.swarm.records.run_manifest import Manifest
from atom.wire.records_pb2 import DataAmount, LeaseBody, ManifestBody, SignedRecord

MAX_RECORD_BYTES = 8 * 1024
"""A DHT value of 16,000 bytes and more kills the node that stores it: stay well below."""
MAX_LEASE_BYTES = 3 * 1024
"""With every field at its longest; many of them have to fit into one answer of the DHT."""
MAX_RUN_FILE_BYTES = 64 * 1024
MAX_RUN_FILE_COMPRESSED_BYTES = 4 * 1024
MAX_VERSIONS = 32
MAX_COUNT = 2**53
"""Of tokens or samples: what every reader of JSON holds exactly."""


def encode_lease(
    lease: Lease, run: str, owner: str, identity: Identity, expires_at: float
) -> bytes:
    """A signed record. `expires_at` is DHT time in seconds and must be used when storing it."""
    assert lease.peer_id == identity.peer_id, "a lease is signed by the peer it speaks for"
    body = to_body(lease, run, owner, expires_at)
    return _sign(LEASE_DOMAIN, body.SerializeToString(), identity)


def decode_lease(record: bytes, run: str, owner: str, peer_id: str) -> Lease:
    """The lease that `peer_id` published in this run.

    Raises: PeerRefused: oversized, malformed, not signed by that peer, of another run, not finite.
    """
    body = LeaseBody()
    _parse(body, _open(record, LEASE_DOMAIN).payload)
    _check_place(body.run, body.owner, run, owner)
    if body.peer_id != peer_id:
        raise PeerRefused(Reason.WRONG_IDENTITY, f"{body.peer_id[:64]!r} under {peer_id!r}")
    return from_body(body)


def encode_manifest(manifest: Manifest, identity: Identity) -> bytes:
    """The owner's signed record, to be kept and stored again byte for byte by every peer.

    Raises: ConfigError if the run file is too large for a DHT record.
    """
    assert manifest.owner == identity.peer_id, "a manifest is signed by its owner"
    text = manifest.run_file.encode()
    compressed = zlib.compress(text, 9)
    too_long = len(text) > MAX_RUN_FILE_BYTES or len(compressed) > MAX_RUN_FILE_COMPRESSED_BYTES
    if too_long:
        raise _run_file_too_large(len(compressed))
    body = ManifestBody(
        run=manifest.run,
        owner=manifest.owner,
        run_file_zlib=compressed,
        graph_hash=manifest.graph_hash,
        program_hash=manifest.program_hash,
        data_digest=manifest.data_digest,
        initial_state_digest=manifest.initial_state_digest,
        founder_incarnation=manifest.founder_incarnation,
        created_at=manifest.created_at,
    )
    if manifest.data_amount is not None:
        tokens, samples, held_back = manifest.data_amount
        body.data_amount.CopyFrom(DataAmount(tokens=tokens, samples=samples, held_back=held_back))
    for package, version in manifest.versions:
        body.versions.add(package=package, version=version)
    record = _sign(MANIFEST_DOMAIN, body.SerializeToString(), identity)
    if len(record) > MAX_RECORD_BYTES:
        raise _run_file_too_large(len(record))
    return record


def decode_manifest(record: bytes, run: str | None, owner: str | None = None) -> Manifest:
    """The manifest of `run`, signed by its owner (which must be `owner`, if one is named). None: of
    whichever run it names.

    Raises: PeerRefused: oversized, malformed, badly signed, of another run or owner.
    """
    body = ManifestBody()
    _parse(body, _open(record, MANIFEST_DOMAIN).payload)
    _check_place(body.run, body.owner, run or body.run, owner if owner is not None else body.owner)
    check_digest("initial_state_digest", body.initial_state_digest)
    if not math.isfinite(body.created_at):
        raise PeerRefused(Reason.NOT_FINITE, "created_at")
    if len(body.versions) > MAX_VERSIONS:
        raise PeerRefused(Reason.TOO_LARGE, "versions")
    return Manifest(
        run=body.run,
        owner=body.owner,
        run_file=_decompress(body.run_file_zlib),
        graph_hash=text_of("graph_hash", body.graph_hash),
        program_hash=text_of("program_hash", body.program_hash),
        versions=tuple(
            (text_of("package", pair.package), text_of("version", pair.version))
            for pair in body.versions
        ),
        data_digest=text_of("data_digest", body.data_digest),
        initial_state_digest=body.initial_state_digest,
        founder_incarnation=incarnation_of(body.founder_incarnation),
        created_at=body.created_at,
        data_amount=_amount(body),
    )


def manifest_digest(manifest: Manifest) -> bytes:
    """32 bytes that name the run; part of genesis."""
    return canonical_digest("manifest", manifest)


def first_head(manifest: Manifest) -> Head:
    """Where the run's chain begins."""
    founder = Voter(manifest.owner, manifest.founder_incarnation)
    return genesis(manifest_digest(manifest), manifest.initial_state_digest, founder)


def read_claim(record: bytes) -> Claim:
    """Who signed a record and where it belongs: all that a storing node needs to check.

    Raises: PeerRefused: oversized, malformed, or not signed by the author it names.
    """
    signed = _open(record)
    if signed.kind == LEASE_DOMAIN:
        lease = LeaseBody()
        _parse(lease, signed.payload)
        if not math.isfinite(lease.expires_at):
            raise PeerRefused(Reason.NOT_FINITE, "expires_at")
        return Claim(LEASE_DOMAIN, lease.run, lease.owner, lease.peer_id, lease.expires_at)
    manifest = ManifestBody()
    _parse(manifest, signed.payload)
    return Claim(MANIFEST_DOMAIN, manifest.run, manifest.owner, manifest.owner, None)


def _sign(domain: str, payload: bytes, identity: Identity) -> bytes:
    signature = identity.sign(domain, payload)
    return SignedRecord(kind=domain, payload=payload, signature=signature).SerializeToString()


def _open(record: bytes, kind: str | None = None) -> SignedRecord:
    """Checks size, kind and signature. The author is read from the payload itself."""
    if len(record) > MAX_RECORD_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"a record of {len(record)} bytes")
    signed = SignedRecord()
    _parse(signed, record)
    if signed.kind == LEASE_DOMAIN and len(record) > MAX_LEASE_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"a lease of {len(record)} bytes")
    if signed.kind not in ((LEASE_DOMAIN, MANIFEST_DOMAIN) if kind is None else (kind,)):
        raise PeerRefused(Reason.MALFORMED, f"a record of kind {signed.kind[:20]!r}")
    author = _author(signed)
    if not verify(author, signed.kind, signed.payload, signed.signature):
        raise PeerRefused(Reason.BAD_SIGNATURE, f"a {signed.kind} in the name of {author}")
    return signed


def _author(signed: SignedRecord) -> str:
    body: LeaseBody | ManifestBody
    body = LeaseBody() if signed.kind == LEASE_DOMAIN else ManifestBody()
    _parse(body, signed.payload)
    author = body.peer_id if isinstance(body, LeaseBody) else body.owner
    for peer_id in (author, body.owner):
        if not is_peer_id(peer_id):  # one spelling of each key: a second were a second voter
            raise PeerRefused(Reason.WRONG_IDENTITY, f"{peer_id[:64]!r} is no Ed25519 peer id")
    if RUN_NAME.fullmatch(body.run) is None:
        raise PeerRefused(Reason.WRONG_RUN, f"{body.run[:64]!r} is no run's name")
    return author


def _parse(message: SignedRecord | LeaseBody | ManifestBody, raw: bytes) -> None:
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, str(error)) from None


def _check_place(run: str, owner: str, expected_run: str, expected_owner: str) -> None:
    if (run, owner) != (expected_run, expected_owner):
        raise PeerRefused(Reason.WRONG_RUN, f"{run}/{owner} instead of {expected_run}")


def _decompress(compressed: bytes) -> str:
    """At most MAX_RUN_FILE_BYTES, whatever the stream would expand to."""
    if len(compressed) > MAX_RUN_FILE_COMPRESSED_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, "run file")
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(compressed, MAX_RUN_FILE_BYTES + 1)
        if len(text) > MAX_RUN_FILE_BYTES:
            raise PeerRefused(Reason.TOO_LARGE, "run file")
        if not stream.eof or stream.unused_data:
            raise PeerRefused(Reason.MALFORMED, "run file")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise PeerRefused(Reason.MALFORMED, f"run file: {error}") from None


def _amount(body: ManifestBody) -> tuple[int, int, int] | None:
    if not body.HasField("data_amount"):
        return None
    amount = body.data_amount
    counts = amount.tokens, amount.samples, amount.held_back
    if max(counts) > MAX_COUNT:
        raise PeerRefused(Reason.TOO_LARGE, "data_amount")
    return counts


def _run_file_too_large(size_bytes: int) -> ConfigError:
    return ConfigError(
        f"the run file takes {size_bytes} bytes compressed, too many for the DHT",
        f"shorten it to {MAX_RUN_FILE_COMPRESSED_BYTES} bytes compressed: "
        "comments do not count, long lists of paths or members do",
    )
