"""The directory of a run: who is there (leases) and what is trained (the manifest).

Records are checked where they come in, by the DHT process (see storage); what it passes on is
well signed, in its place and, in a closed run, of a member.
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
from atom.swarm.addresses import check_run_name, rank_addresses
from atom.swarm.dht.client import DhtClient, DirectoryUnavailable
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.dial_rules import primary_host
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

READ_SECONDS = 1.5
"""A reading is answered in this time, from what was known before if a node keeps silent."""
WIDE_READ_SECONDS = 6.0
CALL_MARGIN_SECONDS = 2.5
MANIFEST_SECONDS = 8.0
MANIFEST_PATIENCE_SECONDS = 30.0
"""Where nodes keep silent, so that nobody can say that it is nowhere."""
MANIFEST_RETRY_SECONDS = 0.5
KEEP_SECONDS = 60.0
KEEP_LIFETIME_SECONDS = 600.0
"""A manifest is stored again and again: it outlives its author."""


def no_answer(problem: Exception) -> AddressError:
    """What a DirectoryUnavailable, or time that is up, means to somebody who waits for it."""
    detail = str(problem) or "no answer in time"
    return AddressError(f"the DHT cannot be asked: {detail}", "try again in a moment")


class Directory:
    """What a peer needs to know about the others; make it with `open_directory`. Every call ends
    within seconds.

    Raises (every call): DirectoryUnavailable while the DHT cannot be asked; nothing is known
    about anybody then, which is not the same as nobody being there.
    """

    def __init__(
        self,
        client: DhtClient,
        run: str,
        owner: str,
        identity: Identity | None,
    ) -> None:
        """`owner`: peer id of the founder."""
        self.run, self.owner = check_run_name(run), owner
        self._client = client
        self._identity = identity
        self._listed: Listed = None
        self.records: dict[bytes, Lease] = {}
        """Leases of the last reading, by signed record. Most of them are read several times."""
        self.known: frozenset[str] = frozenset()
        """Peers whose leases a crowd of others must not hide, in a run that is open to all."""
        self._keeping: asyncio.Task[None] | None = None

    def sign_lease(self, lease: Lease) -> SignedLease:
        """Return our lease as a signed record that is valid for 8 s."""
        assert self._identity is not None, "an onlooker publishes nothing"
        expires_at = time.time() + LEASE_SECONDS
        record = encode_lease(lease, self.run, self.owner, self._identity, expires_at)
        return SignedLease(record, lease, expires_at)

    async def store_lease(self, signed: SignedLease) -> None:
        """Store our signed lease on the DHT, where newcomers and onlookers read it."""
        key = lease_key(self.run, self.owner)
        await self._store(key, signed.lease.peer_id, signed.record, signed.expires_at)

    async def read_leases(self) -> dict[str, Lease]:
        """The leases of the run by peer id, our own included. If many strangers are there, only
        some of theirs; if the manifest last read or published here has a list, none."""
        found, _ = await self._fetch(lease_key(self.run, self.owner))
        before = self.records
        self.records = {record: before.get(record) or decode_lease(record) for _, record in found}
        return {lease.peer_id: lease for lease in self.records.values()}

    async def publish_manifest(self, record: bytes) -> None:
        """Stores the owner's signed record and keeps storing it while this directory is open."""
        self._listed = seen_from_outside(decode_manifest(record, self.run, self.owner))
        if self._keeping is not None:
            self._keeping.cancel()
        await self._store_manifest(record)
        self._keeping = asyncio.create_task(self._keep_manifest(record))

    async def _store_manifest(self, record: bytes) -> None:
        expires_at = time.time() + KEEP_LIFETIME_SECONDS
        await self._store(manifest_key(self.run, self.owner), self.owner, record, expires_at)

    async def _keep_manifest(self, record: bytes) -> None:
        """Stores it again about every minute (every peer does), and for each new DHT process."""
        while True:
            self._client.restarted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_SECONDS * random.uniform(0.8, 1.2)):
                    await self._client.restarted.wait()
            with contextlib.suppress(DirectoryUnavailable):
                await self._store_manifest(record)

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        """The run's manifest and its signed record. Raises: AddressError if there is none."""
        key = manifest_key(self.run, self.owner)
        began, is_answered = time.monotonic(), False
        for widely in itertools.cycle((False, True)):
            found, complete = await self._fetch(key, widely)
            if found:
                [(_, record)] = found  # it is its author's own, under their name
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
            f"the DHT is reached, but knows no run named {self.run!r} of owner {self.owner}",
            "check the run's name, and that at least one of its peers is alive",
        )

    async def visible_addresses(self) -> tuple[str, ...]:
        """Multiaddrs under which others may enter the DHT through us, best first."""
        return rank_addresses(await self._client.call("addresses"), primary_host())

    def contacts(self) -> tuple[str, ...]:
        """Multiaddrs of DHT nodes met lately: worth saving for the next start."""
        return self._client.contacts

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        await self._client.close()

    async def _store(self, key: str, subkey: str, record: bytes, expires_at: float) -> None:
        await self._client.call(
            "store",
            key=key,
            subkey=subkey,
            record=record,
            expires_at=expires_at,
            **self._whose(key),
        )

    async def _fetch(self, key: str, widely: bool = False) -> tuple[list[tuple[str, bytes]], bool]:
        """What lies under `key`, by subkey, and whether all that were asked have answered."""
        deadline_s = WIDE_READ_SECONDS if widely else READ_SECONDS
        found, is_complete = await self._client.call(
            "fetch",
            timeout_s=deadline_s + CALL_MARGIN_SECONDS,
            key=key,
            deadline_s=deadline_s,
            widely=widely,
            **self._whose(key),
        )
        return found, is_complete

    def _whose(self, key: str) -> dict[str, Any]:
        """The peers whose records matter there. Our own and the owner's always do."""
        listed = self._listed
        ours = {self.owner} | ({self._identity.peer_id} if self._identity else set())
        only_known = listed is not None and key == lease_key(self.run, self.owner)
        return {"known": list(ours | (listed or self.known)), "only_known": only_known}


async def open_directory(
    run: str, owner: str, node: NodeSettings, events: EventSink | None = None
) -> Directory:
    """Starts a DHT node in its own process and looks at one run through it.

    Raises: AddressError, PortInUseError, StorageError, UserError; nothing is left behind then.
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
    """A DHT node that others enter through, under these multiaddrs, best first. `events` get that
    its process ended and was started again.

    Raises: AddressError, PortInUseError, StorageError, UserError.
    """
    Identity.load_or_create(Path(str(node.identity_path)))
    client = DhtClient(node, events)
    try:
        await client.start()
        yield rank_addresses(await client.call("addresses"), primary_host())
    except DirectoryUnavailable as problem:
        raise no_answer(problem) from problem
    finally:
        await client.close()
