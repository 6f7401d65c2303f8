"""Interface of the service that keeps a run's signed records: the DHT, or a dictionary in tests.

`DhtClient` (`swarm/dht/client.py`) is the DHT. `Directory` (`swarm/dht/directory.py`) signs and
reads leases and manifests on any store, and does not verify leases again. Therefore a store passes
on only records that `read_claim` accepts, under the key and the peer id that the record itself
names, and none that has expired.
"""

import asyncio
from collections.abc import Collection
from typing import Protocol

from atom.base.errors import AtomError


class DirectoryUnavailable(AtomError):
    """Error of a store that cannot be asked now. It says nothing about other peers; ask later."""


class RecordStore(Protocol):
    """Open store of the signed records of all runs, used in one event loop.

    Every coroutine except `close` may raise DirectoryUnavailable.
    """

    contacts: tuple[str, ...]
    """Addresses of further entrances, to be saved for the next start."""
    restarted: asyncio.Event
    """Set when the store may have lost records; the caller clears it."""

    async def store(
        self,
        key: str,
        subkey: str,
        record: bytes,
        expires_at: float,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> None:
        """Store a record. Of two with one key and subkey, the one that expires later stays.

        Args:
            key: A lease key or a manifest key.
            subkey: Peer id of the record's author.
            record: Signed record.
            expires_at: Expiry, Unix time in seconds.
            known: Peer ids whose records a crowd of others must not displace.
            only_known: Refuse records of all other peers under this key.
        """

    async def fetch(
        self,
        key: str,
        deadline_s: float,
        widely: bool = False,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """Return the records under a key with their subkeys, and True if none can be missing.

        The records are verified, as the module's docstring says.

        Args:
            key: A lease key or a manifest key.
            deadline_s: Seconds after which the search ends with what it has found.
            widely: Search longer, and in more places.
            known: Peer ids whose records come first.
            only_known: Ignore all other records.
        """

    async def addresses(self) -> list[str]:
        """Return the addresses under which others may enter through this store."""

    async def close(self) -> None:
        """End the store. Never fails; idempotent."""
