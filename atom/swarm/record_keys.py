"""Where records lie on the DHT: keys by run and owner, subkeys by author."""

import hashlib
from dataclasses import dataclass

LEASE_DOMAIN = "lease"
MANIFEST_DOMAIN = "manifest"

LEASE_SHARDS = 16
"""Leases of one run are spread over this many DHT keys, so that each stays small to fetch."""


@dataclass(frozen=True)
class Claim:
    """What a record says about its own place on the DHT, signature already checked."""

    kind: str
    run: str
    owner: str
    author: str
    """The signer; also the subkey the record is stored under."""
    expires_at: float | None
    """DHT time at which it ends; None: as long as somebody stores it again."""

    def places(self) -> tuple[str, ...]:
        """The DHT keys it may be stored under."""
        if self.kind == LEASE_DOMAIN:
            return (lease_key(self.run, self.owner, shard_of(self.author)),)
        return manifest_key(self.run, self.owner), index_key(self.run)


def lease_key(run: str, owner: str, shard: int) -> str:
    return f"atom/1/{run}/{owner}/lease/{shard}"


def lease_keys(run: str, owner: str) -> tuple[str, ...]:
    """All keys that together hold a run's leases."""
    return tuple(lease_key(run, owner, shard) for shard in range(LEASE_SHARDS))


def manifest_key(run: str, owner: str) -> str:
    return f"atom/1/{run}/{owner}/manifest"


def index_key(run: str) -> str:
    """Where the manifests of every run of this name are found, whoever owns it."""
    return f"atom/1/{run}/index"


def shard_of(peer_id: str) -> int:
    return hashlib.sha256(peer_id.encode()).digest()[0] % LEASE_SHARDS
