"""What an owner publishes on the DHT of a run: its manifest, which also says who may take part. And
leases and manifests to signed records and back. Every byte that comes in is a stranger's.

A record is bound to its place: author, run and owner are inside the signed payload, so it cannot
be replayed under another peer's name or into another run; a lease also carries its own expiry,
so it cannot be kept alive either.
"""

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from atom.base.errors import ConfigError, PeerRefused
from atom.base.reasons import Reason
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
"""Of tokens or samples: what every reader of JSON holds exactly."""

RunName = Annotated[str, lambda text: RUN_NAME.fullmatch(text) is not None]
RunFile = Annotated[str, lambda text: len(text) <= MAX_RUN_FILE_CHARACTERS]
Amount = Annotated[int, lambda number: number <= MAX_COUNT]


class PackageVersion(NamedTuple):
    package: Text
    version: Text


class DataAmount(NamedTuple):
    """How much a run trains on. The data's digest decides which; this is for people."""

    tokens: Amount
    """To train on; 0: the samples are no text."""
    samples: Amount
    """To train on: sequences of text, or items of an own dataset."""
    held_back: Amount
    """For validation: tokens, or samples where there are none."""


class TextFile(NamedTuple):
    """Tokens that the run's samples are cut from."""

    dtype: Annotated[str, {"uint8", "uint16", "int16", "int32"}.__contains__]
    tokens: Amount
    sha256: Annotated[str, lambda text: len(text) == 64]
    """Of all of them, as they lie on disk."""


class SharedText(NamedTuple):
    """What peers give each other of the run's text: a blob of its tokenizer and its tokens."""

    digest: Digest
    """The state digest of the blob."""
    vocabulary: Amount
    """Tokens that its tokenizer knows."""
    tokenizer_bytes: Amount
    """Of its tokenizer.json; 0: it has none."""
    files: Annotated[tuple[TextFile, ...], MAX_TEXT_FILES]


@dataclass(frozen=True)
class Manifest:
    """What a run is: its file, the program it computes, the versions that decide both.

    Signed by the owner (the peer that founded the run); its digest is part of genesis.
    """

    run: RunName
    owner: PeerId
    """Peer id of the founder; verifies the manifest and the genesis voter."""
    run_file: RunFile
    """The run file's normalised TOML or JSON text: everything the swarm agrees on."""
    graph_hash: Text
    """What the program of sub-models computes; each peer prints it itself."""
    versions: Annotated[tuple[PackageVersion, ...], MAX_VERSIONS]
    """Of packages that change the graph."""
    data_digest: Text
    """Digest of the tokenized training set, or "" if peers may hold different data."""
    initial_state_digest: Digest
    founder_incarnation: Incarnation
    data_amount: DataAmount
    frozen_digest: OptionalDigest = b""
    """Of the parameters that no step changes and no state holds; empty: there are none."""
    text: SharedText | None = None
    """None: each peer has a copy of its own, or samples that are no text."""


def manifest_digest(manifest: Manifest) -> bytes:
    """32 bytes that name the run; part of genesis."""
    return canonical_digest("manifest", manifest)


def first_head(manifest: Manifest) -> Head:
    """Return the head at which the run's chain begins."""
    founder = Voter(manifest.owner, manifest.founder_incarnation)
    state = manifest.initial_state_digest
    return genesis(manifest_digest(manifest), state, founder, chain_rules(manifest))


def chain_rules(manifest: Manifest) -> ChainRules:
    """Return the terms of the run file that bind every commit. An onlooker that cannot read the run
    file of a newer version gets the terms of an open run, and perhaps refuses its chain."""
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
"""The peers of a run, of which all have the same list: it is in the manifest. None: it is open."""


def listed_peers(owner: str, members: Iterable[str] | None) -> Listed:
    """`members` as the run file has them, and the owner."""
    return None if members is None else frozenset(members) | {owner}


def seen_from_outside(manifest: Manifest) -> Listed:
    """The list of a (verified) manifest, for those who only look.

    They may look at a run of a newer version, whose file they cannot read: then at everybody in it.
    Peers read the whole run file before they take part, or do not.
    """
    try:
        run = run_from_text(manifest.run_file)
    except ConfigError:
        return None
    return listed_peers(manifest.owner, run.swarm.members)


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
    place: str
    """The DHT key it may be stored under."""
    expires_at: float | None
    """DHT time at which it ends; None: as long as somebody stores it again."""


def lease_key(run: str, owner: str) -> str:
    """Where the leases of a run are found, all together."""
    return f"atom/3/{run}/{owner}/lease"


def manifest_key(run: str, owner: str) -> str:
    return f"atom/3/{run}/{owner}/manifest"


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
    losses = () if lease.validation is None else (lease.validation.loss, *lease.validation.by_text)
    if not all(abs(loss) <= MAX_LOSS for loss in losses):
        lease = replace(lease, validation=None)
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
        return Claim(LEASE_DOMAIN, body.lease.peer_id, place, body.expires_at)
    return Claim(MANIFEST_DOMAIN, body.owner, manifest_key(body.run, body.owner), None)


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
