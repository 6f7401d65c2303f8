"""Directory of a run on a store of records: leases of its peers, and the manifest of the run.

The DHT process checks each record when it arrives (see storage). The records that it passes on are
well signed and in their place and, in a run with a list of members, written by a member.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from atom.base.errors import AddressError
from atom.base.events import EventSink
from atom.swarm.addresses import check_run_name
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.dial_rules import primary_host, rank_addresses
from atom.swarm.identity import Identity
from atom.swarm.records.lease import LEASE_SECONDS, Lease, SignedLease
from atom.swarm.records.manifest import (
    Listed,
    Manifest,
    decode_lease,
    decode_manifest,
    encode_lease,
    lease_key,
    manifest_key,
    seen_from_outside,
)
from atom.swarm.records.store import DirectoryUnavailable, RecordStore

READ_SECONDS = 1.5
"""Time limit of a reading. If a node keeps silent, the answer has records of the last reading."""
WIDE_READ_SECONDS = 6.0
MANIFEST_SECONDS = 8.0
MANIFEST_PATIENCE_SECONDS = 30.0
"""Time limit of the search for a manifest while nodes keep silent."""
MANIFEST_RETRY_SECONDS = 0.5
KEEP_SECONDS = 60.0
KEEP_LIFETIME_SECONDS = 600.0
"""Lifetime of a stored manifest. Peers store it again, so it outlives its author."""


def no_answer(problem: Exception) -> AddressError:
    """Return the error for a caller that waited for the DHT in vain."""
    detail = str(problem) or "no answer in time"
    return AddressError(f"the DHT cannot be asked: {detail}", "try again in a moment")


class Directory:
    """Leases and manifest of one run; open it with `open_directory`. Each call ends within seconds.

    Raises (every call): DirectoryUnavailable while the DHT cannot be asked. Then nothing is known
    about other peers, which does not mean that no peer is there.
    """

    def __init__(
        self,
        store: RecordStore,
        run: str,
        owner: str,
        identity: Identity | None,
    ) -> None:
        """Create a directory on an open store.

        Args:
            owner: peer id of the founder.
            identity: signs our lease; None for an onlooker.
        """
        self.run, self.owner = check_run_name(run), owner
        self._records = store
        self._identity = identity
        self._listed: Listed = None
        self.records: dict[bytes, Lease] = {}
        """Leases of the last reading, by signed record. Most of them are read several times."""
        self.known: frozenset[str] = frozenset()
        """Peers whose leases a crowd of strangers must not hide, in a run without a member list."""
        self._keeping: asyncio.Task[None] | None = None

    def sign_lease(self, lease: Lease) -> SignedLease:
        """Return our lease as a signed record that is valid for `LEASE_SECONDS`."""
        assert self._identity is not None, "an onlooker publishes nothing"
        expires_at = time.time() + LEASE_SECONDS
        record = encode_lease(lease, self.run, self.owner, self._identity, expires_at)
        return SignedLease(record, lease, expires_at)

    async def store_lease(self, signed: SignedLease) -> None:
        """Store our signed lease on the DHT, where newcomers and onlookers read it."""
        key = lease_key(self.run, self.owner)
        await self._store(key, signed.lease.peer_id, signed.record, signed.expires_at)

    async def read_leases(self) -> dict[str, Lease]:
        """Return the leases of the run by peer id, our own included.

        Of many strangers, some leases are missing; in a run with a list of members, all are.
        """
        found, _ = await self._fetch(lease_key(self.run, self.owner))
        before = self.records
        self.records = {record: before.get(record) or decode_lease(record) for _, record in found}
        return {lease.peer_id: lease for lease in self.records.values()}

    async def publish_manifest(self, record: bytes) -> None:
        """Store the owner's signed record, and store it again while this directory is open."""
        self._listed = seen_from_outside(decode_manifest(record, self.run, self.owner))
        if self._keeping is not None:
            self._keeping.cancel()
        await self._store_manifest(record)
        self._keeping = asyncio.create_task(self._keep_manifest(record))

    async def _store_manifest(self, record: bytes) -> None:
        expires_at = time.time() + KEEP_LIFETIME_SECONDS
        await self._store(manifest_key(self.run, self.owner), self.owner, record, expires_at)

    async def _keep_manifest(self, record: bytes) -> None:
        """Store the manifest again about every minute, and for each new DHT process."""
        while True:
            self._records.restarted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_SECONDS * random.uniform(0.8, 1.2)):
                    await self._records.restarted.wait()
            with contextlib.suppress(DirectoryUnavailable):
                await self._store_manifest(record)

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        """Return the manifest and its signed record.

        Raises:
            AddressError: There is no manifest.
        """
        key = manifest_key(self.run, self.owner)
        began, is_answered = time.monotonic(), False
        for widely in itertools.cycle((False, True)):
            found, complete = await self._fetch(key, widely)
            if found:
                [(_, record)] = found  # one author, one subkey
                manifest = decode_manifest(record, self.run, self.owner)
                self._listed = seen_from_outside(manifest)
                return manifest, record
            is_answered = is_answered or (widely and complete)
            patience_s = MANIFEST_SECONDS if is_answered else MANIFEST_PATIENCE_SECONDS
            if time.monotonic() - began >= patience_s:
                break
            await asyncio.sleep(MANIFEST_RETRY_SECONDS)
        if not is_answered:
            raise no_answer(TimeoutError())
        raise AddressError(
            f"the DHT answers, but knows no run named {self.run!r} of owner {self.owner}",
            "check the run's name, and that at least one of its peers is alive",
        )

    async def visible_addresses(self) -> tuple[str, ...]:
        """Return multiaddrs under which others may enter the DHT through us, best first."""
        return rank_addresses(await self._records.addresses(), primary_host())

    def contacts(self) -> tuple[str, ...]:
        """Return multiaddrs of DHT nodes met lately, to be saved for the next start."""
        return self._records.contacts

    async def close(self) -> None:
        """Stop renewing records, and end the DHT node."""
        if self._keeping is not None:
            self._keeping.cancel()
        await self._records.close()

    async def _store(self, key: str, subkey: str, record: bytes, expires_at: float) -> None:
        await self._records.store(key, subkey, record, expires_at, **self._whose(key))

    async def _fetch(self, key: str, widely: bool = False) -> tuple[list[tuple[str, bytes]], bool]:
        """Return the records under `key` with their subkeys, and True if all nodes answered."""
        deadline_s = WIDE_READ_SECONDS if widely else READ_SECONDS
        return await self._records.fetch(key, deadline_s, widely, **self._whose(key))

    def _whose(self, key: str) -> dict[str, Any]:
        """Return the peers whose records under `key` come first: always our own and the owner's."""
        listed = self._listed
        ours = {self.owner} | ({self._identity.peer_id} if self._identity else set())
        only_known = listed is not None and key == lease_key(self.run, self.owner)
        return {"known": list(ours | (listed or self.known)), "only_known": only_known}


async def open_directory(
    run: str, owner: str, node: NodeSettings, events: EventSink | None = None
) -> Directory:
    """Start a DHT node in its own process, and return the directory of one run on it.

    After an error the process has ended.

    Args:
        run: Name of the run.
        owner: Peer id of the run's founder.
        node: Settings of the node.
        events: Receiver of the node's events; None: no receiver.

    Raises:
        AddressError: The name of the run is malformed; or as `DhtClient.start`.
        PortInUseError, StorageError, UserError, DirectoryUnavailable: As `DhtClient.start`.
    """
    check_run_name(run)
    identity = None
    if node.identity_path is not None:
        identity = Identity.load_or_create(Path(node.identity_path))
    client = DhtClient(node, events)
    await client.start()
    return Directory(client, run, owner, identity)


@contextlib.asynccontextmanager
async def entrance(node: NodeSettings, events: EventSink) -> AsyncIterator[tuple[str, ...]]:
    """Run a DHT node through which others enter, and yield its multiaddrs, best first.

    Args:
        node: Settings of the node.
        events: Receiver of an event when the node's process ended or was started again.

    Raises:
        AddressError, PortInUseError, StorageError, UserError: As `DhtClient.start`.
    """
    Identity.load_or_create(Path(str(node.identity_path)))
    client = DhtClient(node, events)
    try:
        await client.start()
        yield rank_addresses(await client.addresses(), primary_host())
    except DirectoryUnavailable as problem:
        raise no_answer(problem) from problem
    finally:
        await client.close()
