"""Leases and manifests to signed records and back. Every byte that comes in is a stranger's.

A record is bound to its place: author, run and owner are inside the signed payload, so it cannot
be replayed under another peer's name or into another run; a lease also carries its own expiry,
so it cannot be kept alive either.
"""

import math
import zlib
from dataclasses import dataclass, replace
from typing import Annotated

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain.commit import PeerId, Signature
from atom.swarm.identity import Identity, verify
from atom.swarm.records.lease import MAX_LOSS, Lease
from atom.swarm.records.manifest import MAX_RUN_FILE_CHARACTERS, Manifest, RunName

LEASE_DOMAIN = "lease"
MANIFEST_DOMAIN = "manifest"
MAX_RECORD_BYTES = 8 * 1024
"""A DHT value of 16,000 bytes and more kills the node that stores it: stay well below."""
MAX_LEASE_BYTES = 3 * 1024
"""With every field at its longest; many of them have to fit into one answer of the DHT."""
MAX_MANIFEST_BYTES = 2 * MAX_RUN_FILE_CHARACTERS
"""Uncompressed."""


@dataclass(frozen=True)
class Claim:
    """What a record says about its own place on the DHT, signature already checked."""

    kind: str
    author: str
    """The signer; also the subkey the record is stored under."""
    places: tuple[str, ...]
    """The DHT keys it may be stored under."""
    expires_at: float | None
    """DHT time at which it ends; None: as long as somebody stores it again."""


def lease_key(run: str, owner: str) -> str:
    """Where the leases of a run are found, all together."""
    return f"atom/3/{run}/{owner}/lease"


def manifest_key(run: str, owner: str) -> str:
    return f"atom/3/{run}/{owner}/manifest"


def index_key(run: str) -> str:
    """Where the manifests of every run of this name are found, whoever owns it."""
    return f"atom/3/{run}/index"


@dataclass(frozen=True)
class SignedRecord:
    """The value stored under a DHT key and subkey. `kind` is also the signature's domain."""

    kind: Annotated[str, lambda kind: kind in (LEASE_DOMAIN, MANIFEST_DOMAIN)]
    payload: Annotated[bytes, lambda raw: len(raw) <= MAX_RECORD_BYTES]
    signature: Signature


@dataclass(frozen=True)
class LeaseBody:
    """A lease, the run that it is for, and when it ends (DHT time, seconds)."""

    run: RunName
    owner: PeerId
    expires_at: Annotated[float, math.isfinite]
    lease: Lease


def encode_lease(
    lease: Lease, run: str, owner: str, identity: Identity, expires_at: float
) -> bytes:
    """A signed record. `expires_at` is DHT time in seconds and must be used when storing it.

    A loss that the others would refuse, such as one that a member made up, is left out: it must not
    hide this peer from them.
    """
    assert lease.peer_id == identity.peer_id, "a lease is signed by the peer it speaks for"
    if lease.loss is not None and not abs(lease.loss) <= MAX_LOSS:
        lease = replace(lease, loss=None)
    payload = schema.encode(LeaseBody(run, owner, expires_at, lease))
    return _sign(LEASE_DOMAIN, payload, identity)


def decode_lease(record: bytes) -> Lease:
    """The lease in a record whose claim was checked (`read_claim`). Raises: PeerRefused."""
    signed = schema.decode(SignedRecord, record, MAX_RECORD_BYTES)
    return schema.decode(LeaseBody, signed.payload, MAX_LEASE_BYTES).lease


def encode_manifest(manifest: Manifest, identity: Identity) -> bytes:
    """The owner's signed record, to be kept and stored again byte for byte by every peer.

    Raises: ConfigError if the run file is too large for a DHT record.
    """
    assert manifest.owner == identity.peer_id, "a manifest is signed by its owner"
    record = _sign(MANIFEST_DOMAIN, zlib.compress(schema.encode(manifest), 9), identity)
    if len(record) > MAX_RECORD_BYTES or len(manifest.run_file) > MAX_RUN_FILE_CHARACTERS:
        raise ConfigError(
            f"the run file makes a record of {len(record)} bytes, too many for the DHT",
            f"shorten it: {MAX_RECORD_BYTES} bytes compressed, and {MAX_RUN_FILE_CHARACTERS} "
            "characters, are the most; long lists of paths or members take most of them",
        )
    return record


def decode_manifest(record: bytes, run: str | None, owner: str | None = None) -> Manifest:
    """The manifest of `run`, signed by its owner (which must be `owner`, if one is named). None: of
    whichever run it names.

    Raises: PeerRefused: oversized, malformed, badly signed, of another run or owner.
    """
    manifest = _open(record)
    if not isinstance(manifest, Manifest):
        raise PeerRefused(Reason.MALFORMED, "not a manifest")
    if run not in (None, manifest.run) or owner not in (None, manifest.owner):
        raise PeerRefused(Reason.WRONG_RUN, f"{manifest.run}/{manifest.owner} instead of {run}")
    return manifest


def read_claim(record: bytes) -> Claim:
    """Who signed a record and where it belongs: all that a storing node needs to check.

    Raises: PeerRefused: oversized, malformed, or not signed by the author it names.
    """
    body = _open(record)
    if isinstance(body, LeaseBody):
        place = lease_key(body.run, body.owner)
        return Claim(LEASE_DOMAIN, body.lease.peer_id, (place,), body.expires_at)
    places = manifest_key(body.run, body.owner), index_key(body.run)
    return Claim(MANIFEST_DOMAIN, body.owner, places, None)


def _sign(domain: str, payload: bytes, identity: Identity) -> bytes:
    return schema.encode(SignedRecord(domain, payload, identity.sign(domain, payload)))


def _open(record: bytes) -> LeaseBody | Manifest:
    """The content of a record that its author signed. Raises: PeerRefused."""
    signed = schema.decode(SignedRecord, record, MAX_RECORD_BYTES)
    body: LeaseBody | Manifest
    if signed.kind == LEASE_DOMAIN:
        body = schema.decode(LeaseBody, signed.payload, MAX_LEASE_BYTES)
        author = body.lease.peer_id
    else:
        body = schema.decode(Manifest, _decompress(signed.payload), MAX_MANIFEST_BYTES)
        author = body.owner
    if not verify(author, signed.kind, signed.payload, signed.signature):
        raise PeerRefused(Reason.BAD_SIGNATURE, f"a {signed.kind} in the name of {author}")
    return body


def _decompress(compressed: bytes) -> bytes:
    """At most MAX_MANIFEST_BYTES, whatever the stream would expand to."""
    stream = zlib.decompressobj()
    try:
        payload = stream.decompress(compressed, MAX_MANIFEST_BYTES + 1)
    except zlib.error as error:
        raise PeerRefused(Reason.MALFORMED, f"manifest: {error}") from None
    if len(payload) > MAX_MANIFEST_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, "manifest")
    if not stream.eof or stream.unused_data:
        raise PeerRefused(Reason.MALFORMED, "manifest")
    return payload
