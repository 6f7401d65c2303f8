"""Records of all nodes of a DHT in a dictionary, without a network, with directories on it."""

import asyncio
from collections.abc import Collection

from atom.swarm.dht.directory import Directory
from atom.swarm.identity import Identity
from atom.swarm.records.store import DirectoryUnavailable


class MemoryDht:
    """`RecordStore` of all peers. Records are not checked, and never expire."""

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
        return Directory(self, run, owner, identity)

    async def store(
        self,
        key: str,
        subkey: str,
        record: bytes,
        expires_at: float,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> None:
        self._asked(known, only_known)
        place, news = (key, subkey), (expires_at, record)
        self._records[place] = max(news, self._records.get(place, news))

    async def fetch(
        self,
        key: str,
        deadline_s: float,
        widely: bool = False,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> tuple[list[tuple[str, bytes]], bool]:
        self._asked(known, only_known)
        stored = self._records.items() if widely or not self.only_widely else ()
        under = [(place[1], record) for place, (_, record) in stored if place[0] == key]
        return [each for each in under if not only_known or each[0] in known], True

    async def addresses(self) -> list[str]:
        return []

    def _asked(self, known: Collection[str], only_known: bool) -> None:
        if not self.is_reachable:
            raise DirectoryUnavailable("the network is down")
        self.told = set(known), only_known

    async def close(self) -> None: ...
