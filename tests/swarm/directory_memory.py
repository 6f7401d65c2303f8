"""The directory without a network: the same records, in a dictionary."""

from atom.base.clock import Clock
from atom.base.events import EventSink
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import RecordReader, no_such_run
from atom.swarm.identity import Identity
from atom.swarm.records.codec import (
    decode_manifest,
    encode_lease,
    index_key,
    lease_key,
    manifest_key,
)
from atom.swarm.records.lease import LEASE_SECONDS, Lease
from atom.swarm.records.manifest import Manifest


class MemoryDht:
    """What all nodes together store. Time is the given clock's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], tuple[bytes, float]] = {}
        self.nodes: set[str] = set()
        """Names of the directories that are open."""

    def now(self) -> float:
        return self._clock.now()

    def store(self, key: str, subkey: str, record: bytes, expires_at: float) -> bool:
        """As a DHT does: the record that expires later stays."""
        held = self._records.get((key, subkey))
        if expires_at <= self.now() or (held is not None and held[1] >= expires_at):
            return False
        self._records[key, subkey] = record, expires_at
        return True

    def fetch(self, key: str) -> list[tuple[str, bytes]]:
        return [
            (subkey, record)
            for (found, subkey), (record, expires_at) in self._records.items()
            if found == key and expires_at > self.now()
        ]


class MemoryDirectory:
    """One peer's (or onlooker's) view of a MemoryDht."""

    def __init__(
        self,
        dht: MemoryDht,
        run: str,
        owner: str | None,
        identity: Identity | None = None,
        events: EventSink | None = None,
    ) -> None:
        self.run = run
        self.owner = owner
        self.is_reachable = True
        """Set to False to play a network that is down: every call then fails."""
        self._dht = dht
        self._identity = identity
        self._reader = RecordReader(events)
        self._name = identity.peer_id if identity is not None else f"onlooker {id(self)}"
        dht.nodes.add(self._name)

    async def publish_lease(self, lease: Lease) -> bool:
        self._reach()
        assert self._identity is not None, "an onlooker publishes nothing"
        assert self.owner is not None, "read or publish the manifest first"
        expires_at = self._dht.now() + LEASE_SECONDS
        record = encode_lease(lease, self.run, self.owner, self._identity, expires_at)
        key = lease_key(self.run, self.owner)
        return self._dht.store(key, lease.peer_id, record, expires_at)

    async def read_leases(self) -> dict[str, Lease]:
        self._reach()
        if self.owner is None:
            await self.read_manifest()
        assert self.owner is not None
        found = self._dht.fetch(lease_key(self.run, self.owner))
        return self._reader.leases(found, self.run, self.owner)

    async def publish_manifest(self, record: bytes) -> bool:
        self._reach()
        manifest = decode_manifest(record, self.run, self.owner)
        self.owner = manifest.owner
        self._reader.believe_members_of(manifest)
        for key in (manifest_key(self.run, self.owner), index_key(self.run)):
            self._dht.store(key, self.owner, record, float("inf"))
        return True

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        self._reach()
        key = index_key(self.run) if self.owner is None else manifest_key(self.run, self.owner)
        answer = self._reader.manifest(self._dht.fetch(key), self.run, self.owner)
        if answer is None:
            raise no_such_run(self.run, self.owner)
        self.owner = answer[0].owner
        self._reader.believe_members_of(answer[0])
        return answer

    async def visible_addresses(self) -> tuple[str, ...]:
        self._reach()
        return ()

    async def neighbours(self) -> tuple[str, ...]:
        self._reach()
        return tuple(sorted(self._dht.nodes - {self._name}))

    def contacts(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        self._dht.nodes.discard(self._name)

    def _reach(self) -> None:
        if not self.is_reachable:
            raise DirectoryUnavailable("the network is down")
