"""Where records lie on the DHT: keys by run and owner, subkeys by author."""

import hashlib
from dataclasses import dataclass

LEASE_DOMAIN = "lease"
MANIFEST_DOMAIN = "manifest"

LEASE_SHARDS = 16
"""Leases of a large swarm are spread over this many DHT keys, so that each stays small to fetch."""
ROOT = None
"""In the place of a shard: the one key where the leases of a small swarm are, all together."""


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
            shard = lease_key(self.run, self.owner, shard_of(self.author))
            return shard, lease_key(self.run, self.owner, ROOT)
        return manifest_key(self.run, self.owner), index_key(self.run)


def lease_key(run: str, owner: str, shard: int | None = ROOT) -> str:
    place = "root" if shard is ROOT else shard
    return f"atom/2/{run}/{owner}/lease/{place}"


def manifest_key(run: str, owner: str) -> str:
    return f"atom/2/{run}/{owner}/manifest"


def index_key(run: str) -> str:
    """Where the manifests of every run of this name are found, whoever owns it."""
    return f"atom/2/{run}/index"


def shard_of(peer_id: str) -> int:
    return hashlib.sha256(peer_id.encode()).digest()[0] % LEASE_SHARDS
