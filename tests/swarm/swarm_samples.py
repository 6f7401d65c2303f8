"""Leases and manifests to test with."""

from dataclasses import replace
from typing import Any

from atom.swarm import schema
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import DataAmount, Manifest, PackageVersion, SignedRecord

INCARNATION = bytes(range(16))
HEAD = bytes(32)

TINY_RUN = """
[run]
name = "shakespeare"
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
[data]
source = "python-stdlib"
[batch]
global_sequences = 8
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
"""

_LEASE = Lease(
    peer_id="",
    incarnation=INCARNATION,
    serial=1,
    issued_at=1_700_000_000.5,
    state=PeerState.ACCUMULATING,
    head=HEAD,
    round=3,
    sequences=5,
    sequences_per_s=1.25,
    tokens_per_s=80.0,
    pass_seconds=0.5,
    loss=5.5,
    state_digest=b"d" * 32,
    addresses=("127.0.0.1:4000", "[::1]:4000"),
)


def a_lease(peer_id: str = "peer", **changes: Any) -> Lease:
    return replace(_LEASE, peer_id=peer_id, **changes)


def a_manifest(owner: Identity, **changes: Any) -> Manifest:
    manifest = Manifest(
        run="shakespeare",
        owner=owner.peer_id,
        run_file='[run]\nname = "shakespeare"\n',
        graph_hash="ab" * 32,
        versions=(PackageVersion("torch", "2.9.0"), PackageVersion("atom", "0.1.0")),
        data_digest="",
        initial_state_digest=b"s" * 32,
        founder_incarnation=INCARNATION,
        data_amount=DataAmount(1880, 234, 0),
    )
    return replace(manifest, **changes)


def signed(kind: str, payload: bytes, identity: Identity, domain: str = "") -> bytes:
    """Return a signed record with any payload."""
    return schema.encode(SignedRecord(kind, payload, identity.sign(domain or kind, payload)))


def payload_of(record: bytes) -> bytes:
    return schema.decode(SignedRecord, record, len(record)).payload
