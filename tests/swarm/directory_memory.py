"""The directory without a network: the real one, on a dictionary in the place of a DHT."""

import asyncio
from collections.abc import Collection
from typing import Any

from atom.base.clock import Clock
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, no_such_run
from atom.swarm.identity import Identity
from atom.swarm.records.codec import index_key, manifest_key
from atom.swarm.records.manifest import Manifest


class MemoryDht:
    """What all nodes together store. Time is the given clock's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], tuple[bytes, float]] = {}

    def now(self) -> float:
        return self._clock.now()

    def store(self, key: str, subkey: str, record: bytes, expires_at: float) -> None:
        """As a DHT does: the record that expires later stays."""
        _, until = self._records.get((key, subkey), (b"", self.now()))
        if expires_at > until:
            self._records[key, subkey] = record, expires_at

    def fetch(self, key: str) -> list[tuple[str, bytes]]:
        return [
            (subkey, record)
            for (found, subkey), (record, expires_at) in self._records.items()
            if found == key and expires_at > self.now()
        ]


class _MemoryClient:
    """In the place of a `DhtClient`."""

    contacts: tuple[str, ...] = ()

    def __init__(self, dht: MemoryDht) -> None:
        self._dht, self.is_reachable = dht, True

    @property
    def restarted(self) -> asyncio.Event:
        return asyncio.Event()

    async def call(
        self,
        name: str,
        timeout_s: float = 0.0,
        known: Collection[str] = (),
        only_known: bool = False,
        **arguments: Any,
    ) -> Any:
        if not self.is_reachable:
            raise DirectoryUnavailable("the network is down")
        match name:
            case "store":
                return self._dht.store(**arguments)
            case "fetch":
                found = self._dht.fetch(arguments["key"])
                return [each for each in found if not only_known or each[0] in known], True
        return []

    async def close(self) -> None: ...


class MemoryDirectory(Directory):
    """One peer's (or onlooker's) view of a MemoryDht."""

    def __init__(
        self,
        dht: MemoryDht,
        run: str,
        owner: str | None,
        identity: Identity | None = None,
    ) -> None:
        self._memory: Any = _MemoryClient(dht)
        super().__init__(self._memory, run, owner, identity, dht.now)

    @property
    def is_reachable(self) -> bool:
        """Set to False to play a network that is down: every call then fails."""
        return bool(self._memory.is_reachable)

    @is_reachable.setter
    def is_reachable(self, reachable: bool) -> None:
        self._memory.is_reachable = reachable

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        """Does not wait for a manifest that is not there."""
        key = index_key(self.run) if self.owner is None else manifest_key(self.run, self.owner)
        found, _ = await self._fetch(key)
        if not found:
            raise no_such_run(self.run, self.owner)
        return await super().read_manifest()
