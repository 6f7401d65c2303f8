"""The manifest of a run, and the signed records that carry manifests and leases on the DHT.

The owner of a run publishes its manifest, which also says which peers may take part. All bytes that
are decoded here come from strangers.

A record is bound to its place: author, run and owner are inside the signed payload, so it cannot
be replayed under another peer's name or into another run. A lease also carries its own expiry, so
no peer can keep it alive.
"""

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from atom.base.errors import ConfigError, PeerRefused, Reason
from atom.config.address import RUN_NAME
from atom.config.load import run_from_text
from atom.swarm import schema
from atom.swarm.chain.commit import (
    ChainRules,
    Digest,
    Head,
    Incarnation,
    OptionalDigest,
    PeerId,
    Signature,
    Voter,
    canonical_digest,
    genesis,
)
from atom.swarm.identity import Identity, verify
from atom.swarm.records.lease import MAX_LOSS, Lease, Text

MAX_RUN_FILE_CHARACTERS = 64 * 1024
MAX_VERSIONS = 32
MAX_TEXT_FILES = 64
MAX_COUNT = 2**53
"""Bound of token and sample counts: every JSON reader represents such integers exactly."""

RunName = Annotated[str, lambda text: RUN_NAME.fullmatch(text) is not None]
RunFile = Annotated[str, lambda text: len(text) <= MAX_RUN_FILE_CHARACTERS]
Amount = Annotated[int, lambda number: number <= MAX_COUNT]


class PackageVersion(NamedTuple):
    """Version of a package that can change the graph."""

    package: Text
    version: Text


class DataAmount(NamedTuple):
    """Size of a run's data, for display. The data itself is identified by its digest."""

    tokens: Amount
    """Tokens to train on; 0 if the samples are not text."""
    samples: Amount
    """Samples to train on: sequences of text, or items of the owner's dataset."""
    held_back: Amount
    """Tokens for validation, or samples if the data is not text."""


class TextFile(NamedTuple):
    """File of tokens from which the run's samples are cut."""

    dtype: Annotated[str, {"uint8", "uint16", "int16", "int32"}.__contains__]
    tokens: Amount
    sha256: Annotated[str, lambda text: len(text) == 64]
    """SHA-256 (hexadecimal) of the file on disk."""


class SharedText(NamedTuple):
    """Blob that peers serve to each other, with the tokenizer and the tokens of the run's text."""

    digest: Digest
    """State digest of the blob."""
    vocabulary: Amount
    """Number of tokens that the tokenizer knows."""
    tokenizer_bytes: Amount
    """Size of tokenizer.json with the settings of its folder; 0 if there is none."""
    files: Annotated[tuple[TextFile, ...], MAX_TEXT_FILES]


@dataclass(frozen=True)
class Manifest:
    """Definition of a run: its run file, its program, and the versions on which both depend.

    Signed by the owner (the peer that founded the run). Its digest is part of genesis.
    """

    run: RunName
    owner: PeerId
    """Peer id of the founder: it signs the manifest and is the only voter at genesis."""
    run_file: RunFile
    """Normalised TOML or JSON text of the run file: all settings on which the swarm agrees."""
    graph_hash: Text
    """Hash of the program of sub-models; each peer traces the model and compares its own."""
    versions: Annotated[tuple[PackageVersion, ...], MAX_VERSIONS]
    """Versions of the packages that can change the graph."""
    data_digest: Text
    """Digest of the tokenized training set, or "" if peers may hold different data."""
    initial_state_digest: Digest
    founder_incarnation: Incarnation
    data_amount: DataAmount
    frozen_digest: OptionalDigest = b""
    """Digest of the frozen parameters, which no step changes and no state contains; empty if there
    are none."""
    text: SharedText | None = None
    """Text that peers serve to each other. None if each peer has its own copy, or if the samples
    are not text."""


def manifest_digest(manifest: Manifest) -> bytes:
    """Return the digest (32 bytes) that names the run and is part of genesis."""
    return canonical_digest("manifest", manifest)


def first_head(manifest: Manifest) -> Head:
    """Return the head at which the run's chain begins."""
    founder = Voter(manifest.owner, manifest.founder_incarnation)
    state = manifest.initial_state_digest
    return genesis(manifest_digest(manifest), state, founder, chain_rules(manifest))


def chain_rules(manifest: Manifest) -> ChainRules:
    """Return the terms of the run file that bind every commit.

    An observer that cannot read the run file of a newer version gets the terms of an open run, and
    may refuse its chain.
    """
    try:
        run = run_from_text(manifest.run_file)
    except ConfigError:
        return ChainRules()
    return ChainRules(
        global_batch=run.batch.global_sequences,
        last_round=run.run.rounds,
        listed=listed_peers(manifest.owner, run.swarm.members) or frozenset(),
        trusted=frozenset(run.swarm.trusted or ()),
    )


Listed = frozenset[str] | None
"""Peer ids that may take part in a run, from its manifest; None if the run is open to all."""


def listed_peers(owner: str, members: Iterable[str] | None) -> Listed:
    """Return `members` of the run file with the owner added; None if the run is open to all."""
    return None if members is None else frozenset(members) | {owner}


def seen_from_outside(manifest: Manifest) -> Listed:
    """Return the listed peers of a verified manifest, for an observer that takes no part.

    None if this version cannot read the run file, which a newer version may have written: the
    observer then accepts the records of all peers. A peer that takes part has always read the run
    file before.
    """
    return chain_rules(manifest).listed or None


LEASE_DOMAIN = "lease"
MANIFEST_DOMAIN = "manifest"
MAX_RECORD_BYTES = 8 * 1024
"""Bound of one record. A DHT value of 16,000 bytes or more crashes the node that stores it."""
MAX_LEASE_BYTES = 3 * 1024
"""Size of a lease with every field at its longest; many leases must fit into one DHT answer."""
MAX_MANIFEST_BYTES = 2 * MAX_RUN_FILE_CHARACTERS
"""Bound of an encoded manifest before compression."""


@dataclass(frozen=True)
class Claim:
    """Author and place of a record on the DHT, read from it after its signature was verified."""

    kind: str
    author: str
    """Peer id of the signer, which is also the DHT subkey of the record."""
    place: str
    """Only DHT key under which the record may be stored."""
    expires_at: float | None
    """DHT time at which the record expires; None if it lives as long as peers store it again."""


def lease_key(run: str, owner: str) -> str:
    """Return the DHT key under which all leases of a run are stored."""
    return f"atom/3/{run}/{owner}/lease"


def manifest_key(run: str, owner: str) -> str:
    """Return the DHT key of the manifest of an owner's run."""
    return f"atom/3/{run}/{owner}/manifest"


@dataclass(frozen=True)
class SignedRecord:
    """Value stored under a DHT key and subkey. `kind` is also the signature's domain."""

    kind: Annotated[str, lambda kind: kind in (LEASE_DOMAIN, MANIFEST_DOMAIN)]
    payload: Annotated[bytes, lambda raw: len(raw) <= MAX_RECORD_BYTES]
    signature: Signature


@dataclass(frozen=True)
class LeaseBody:
    """Signed content of a lease record: the lease, its run, and its expiry (DHT time, seconds)."""

    run: RunName
    owner: PeerId
    expires_at: Annotated[float, math.isfinite]
    lease: Lease


def encode_lease(
    lease: Lease, run: str, owner: str, identity: Identity, expires_at: float
) -> bytes:
    """Return the signed record of a lease.

    A loss that other peers would refuse, such as one that a dishonest member reported, is left out:
    otherwise they would refuse the whole lease and not see this peer.

    Args:
        lease: Lease of this peer.
        run: Name of the run.
        owner: Peer id of the run's owner.
        identity: Key of this peer.
        expires_at: DHT time in seconds; the record must be stored with the same expiry.
    """
    assert lease.peer_id == identity.peer_id, "a lease is signed by its peer"
    if lease.loss is not None and not abs(lease.loss) <= MAX_LOSS:
        lease = replace(lease, loss=None)
    losses = () if lease.validation is None else (lease.validation.loss, *lease.validation.by_text)
    if not all(abs(loss) <= MAX_LOSS for loss in losses):
        lease = replace(lease, validation=None)
    payload = schema.encode(LeaseBody(run, owner, expires_at, lease))
    return _sign(LEASE_DOMAIN, payload, identity)


def decode_lease(record: bytes) -> Lease:
    """Return the lease in a record that `read_claim` has verified.

    Raises:
        PeerRefused: The record is malformed.
    """
    signed = schema.decode(SignedRecord, record, MAX_RECORD_BYTES)
    return schema.decode(LeaseBody, signed.payload, MAX_LEASE_BYTES).lease


def encode_manifest(manifest: Manifest, identity: Identity) -> bytes:
    """Return the owner's signed record, which every peer keeps and stores again unchanged.

    Raises:
        ConfigError: The run file is too large for a DHT record.
    """
    assert manifest.owner == identity.peer_id, "a manifest is signed by its owner"
    record = _sign(MANIFEST_DOMAIN, zlib.compress(schema.encode(manifest), 9), identity)
    if len(record) > MAX_RECORD_BYTES or len(manifest.run_file) > MAX_RUN_FILE_CHARACTERS:
        raise ConfigError(
            f"the run file makes a record of {len(record)} bytes, too large for the DHT",
            f"shorten the run file to {MAX_RUN_FILE_CHARACTERS} characters, and "
            f"{MAX_RECORD_BYTES} bytes compressed; long lists of paths or members take most of "
            "the space",
        )
    return record


def decode_manifest(record: bytes, run: str | None, owner: str | None = None) -> Manifest:
    """Verify a manifest record and return the manifest.

    Args:
        record: Bytes from the DHT.
        run: Run that the manifest must name; None accepts any run.
        owner: Owner that the manifest must name; None accepts any owner.

    Raises:
        PeerRefused: The record is too large, malformed, badly signed, or of another run or owner.
    """
    manifest = _open(record)
    if not isinstance(manifest, Manifest):
        raise PeerRefused(Reason.MALFORMED, "not a manifest")
    if run not in (None, manifest.run) or owner not in (None, manifest.owner):
        raise PeerRefused(Reason.WRONG_RUN, f"{manifest.run}/{manifest.owner} instead of {run}")
    return manifest


def read_claim(record: bytes) -> Claim:
    """Verify a record and return its author and place: all that a storing node has to check.

    Raises:
        PeerRefused: The record is too large, malformed, or not signed by the author that it names.
    """
    body = _open(record)
    if isinstance(body, LeaseBody):
        place = lease_key(body.run, body.owner)
        return Claim(LEASE_DOMAIN, body.lease.peer_id, place, body.expires_at)
    return Claim(MANIFEST_DOMAIN, body.owner, manifest_key(body.run, body.owner), None)


def _sign(domain: str, payload: bytes, identity: Identity) -> bytes:
    return schema.encode(SignedRecord(domain, payload, identity.sign(domain, payload)))


def _open(record: bytes) -> LeaseBody | Manifest:
    """Verify the signature of a record and return its content. Raises: PeerRefused."""
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
    """Decompress, but stop beyond MAX_MANIFEST_BYTES: a small stream can expand without limit."""
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
