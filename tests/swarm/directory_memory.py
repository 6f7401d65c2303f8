"""Records of all nodes of a DHT in a dictionary, without a network, with directories on it."""

import asyncio
from collections.abc import Collection
from typing import Any, cast

from atom.swarm.dht.client import DhtClient, DirectoryUnavailable
from atom.swarm.dht.directory import Directory
from atom.swarm.identity import Identity


class MemoryDht:
    """Stand-in for the `DhtClient` of all peers. Stored records never expire."""

    contacts: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], tuple[float, bytes]] = {}
        self.is_reachable = True
        """Set to False to play a network that is down: every call then fails."""
        self.only_widely = False
        """True if only a wide search finds the records."""
        self.restarted = asyncio.Event()
        self.told: tuple[set[str], bool] = set(), False
        """Peers whose records matter to the last caller, and whether all other records are
        irrelevant."""

    def directory(self, run: str, owner: str, identity: Identity | None = None) -> Directory:
        """One peer's, or without an identity an onlooker's."""
        return Directory(cast(DhtClient, self), run, owner, identity)

    async def call(
        self,
        name: str,
        key: str,
        known: Collection[str] = (),
        only_known: bool = False,
        widely: bool = False,
        **arguments: Any,
    ) -> Any:
        if not self.is_reachable:
            raise DirectoryUnavailable("the network is down")
        self.told = set(known), only_known
        if name == "fetch":
            stored = self._records.items() if widely or not self.only_widely else ()
            under = [(place[1], record) for place, (_, record) in stored if place[0] == key]
            return [each for each in under if not only_known or each[0] in known], True
        place, news = (key, arguments["subkey"]), (arguments["expires_at"], arguments["record"])
        self._records[place] = max(news, self._records.get(place, news))

    async def close(self) -> None: ...
