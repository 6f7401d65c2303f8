"""The directory of a run: who is there (leases) and what is trained (the manifest).

An edge: `Directory` is the contract, `DhtDirectory` the real one on a hivemind DHT, and
tests have a twin of it in memory. Nothing read here is to be trusted beyond its signature.
"""

import asyncio
import itertools
import random
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from atom.base.errors import AddressError, PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.addresses import check_run_name, rank_addresses
from atom.swarm.dht.frames import NodeSettings, from_text, to_text
from atom.swarm.dht.supervisor import SteadyClient
from atom.swarm.identity import Identity
from atom.swarm.records.codec import (
    decode_lease,
    decode_manifest,
    encode_lease,
)
from atom.swarm.records.keys import index_key, lease_key, manifest_key
from atom.swarm.records.lease import LEASE_SECONDS, Lease
from atom.swarm.records.lease_places import LeasePlaces
from atom.swarm.records.manifest import OPEN, Manifest, seen_from_outside

READ_SECONDS = 1.5
"""A reading is answered in this time, from what was known before if a node keeps silent."""
WIDE_READ_SECONDS = 6.0
CALL_MARGIN_SECONDS = 2.5
MANIFEST_SECONDS = 8.0
MANIFEST_PATIENCE_SECONDS = 30.0
"""Where nodes keep silent, so that nobody can say that it is nowhere."""
MANIFEST_RETRY_SECONDS = 0.5
MAX_REPORTS = 256
MAX_NEWS_PER_READING = 1024
"""Leases that are checked after one reading: as many as in a swarm of 1,000 that all have news.
Each takes a third of a millisecond of the process that trains."""

News = tuple[str, bytes]
"""An author's peer id, and a record that was not there last time."""


class Directory(Protocol):
    """What a peer needs to know about the others. Every call ends within seconds.

    Raises (every call): DirectoryUnavailable while the DHT cannot be asked; nothing is known
    about anybody then, which is not the same as nobody being there.
    """

    async def publish_lease(self, lease: Lease) -> bool:
        """Signs and stores our lease for 8 s. Returns whether some node took it."""
        ...

    async def read_leases(self) -> dict[str, Lease]:
        """All leases of the run by peer id, our own included; dropped are invalid ones, and those
        of peers that are not on the list of the manifest last read or published here."""
        ...

    async def publish_manifest(self, record: bytes) -> bool:
        """Stores the owner's signed record and keeps storing it while this directory is open."""
        ...

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        """The run's manifest and its signed record. Raises: AddressError if there is none, or if
        the owner was not named and several runs have this name."""
        ...

    async def visible_addresses(self) -> tuple[str, ...]:
        """Multiaddrs under which others may enter the DHT through us, best first."""
        ...

    async def neighbours(self) -> tuple[str, ...]:
        """Peer ids of other DHT nodes that answer right now (bootstrap nodes included)."""
        ...

    def contacts(self) -> tuple[str, ...]:
        """Multiaddrs of DHT nodes met lately: worth saving for the next start."""
        ...

    async def close(self) -> None: ...


class RecordReader:
    """Turns fetched records into leases and manifests; reports what it drops, once per peer."""

    def __init__(self, events: EventSink | None) -> None:
        self._events = events
        self._allowed = OPEN
        self._reported: set[tuple[str, Reason]] = set()
        self._last: dict[str, tuple[bytes, Lease]] = {}

    def believe_members_of(self, manifest: Manifest) -> None:
        """From now on leases count only if this (verified) manifest's list has their authors."""
        self._allowed = seen_from_outside(manifest)

    def leases(self, found: Iterable[tuple[str, bytes]], run: str, owner: str) -> dict[str, Lease]:
        """Valid leases of (subkey, record) pairs: of several of one peer, the latest. A record
        seen last time is not checked again. Of more news than `MAX_NEWS_PER_READING`, half is of
        those who were there first and half is drawn by lot: a crowd is not all of our work, and who
        comes later is found too. Whose news is left out is said to be as it was."""
        at_hand = self._by_author(found)
        checked = {
            peer_id: self._last[peer_id]
            for peer_id, records in at_hand.items()
            if peer_id in self._last and self._last[peer_id][0] in records
        }
        news = [
            (peer_id, record)
            for peer_id, records in at_hand.items()
            for record in records
            if peer_id not in checked or checked[peer_id][0] != record
        ]
        now, later = _divided(news)
        for peer_id, record in now:
            try:
                lease = decode_lease(record, run, owner, peer_id)
            except PeerRefused as refusal:
                self._report(peer_id, refusal)
                continue
            other = checked.get(peer_id)
            if other is None or _order(other[1]) < _order(lease):
                checked[peer_id] = record, lease
        for peer_id, _ in later:
            if peer_id in self._last:
                checked.setdefault(peer_id, self._last[peer_id])
        self._last = {peer_id: checked[peer_id] for peer_id in at_hand if peer_id in checked}
        return {peer_id: lease for peer_id, (_, lease) in self._last.items()}

    def _by_author(self, found: Iterable[tuple[str, bytes]]) -> dict[str, dict[bytes, None]]:
        """The different records of each peer on the list; first of those seen last time."""
        by_author: dict[str, dict[bytes, None]] = {peer_id: {} for peer_id in self._last}
        for peer_id, record in found:
            try:
                self._allowed.check(peer_id)
                by_author.setdefault(peer_id, {})[record] = None
            except PeerRefused as refusal:
                self._report(peer_id, refusal)
        return {peer_id: records for peer_id, records in by_author.items() if records}

    def manifest(
        self, found: Iterable[tuple[str, bytes]], run: str, owner: str | None
    ) -> tuple[Manifest, bytes] | None:
        """The one valid manifest. Raises: AddressError if there are several."""
        valid = {}
        for subkey, record in found:
            try:
                manifest = decode_manifest(record, run, owner)
                valid[manifest.owner] = manifest, record
            except PeerRefused as refusal:
                self._report(subkey, refusal)
        if len(valid) > 1:
            owners = ", ".join(sorted(valid)[:8])
            raise AddressError(
                f"{len(valid)} runs are named {run!r}, of the owners {owners}",
                f"add the right one to the address: …/run/{run}/owner/OWNER",
            )
        return next(iter(valid.values()), None)

    def _report(self, peer_id: str, refusal: PeerRefused) -> None:
        entry = peer_id[:64], refusal.reason
        if self._events is None or entry in self._reported or len(self._reported) >= MAX_REPORTS:
            return
        self._reported.add(entry)
        self._events.emit(
            "record-refused", peer_id=entry[0], reason=refusal.reason.value, detail=refusal.detail
        )


def _divided(news: list[News]) -> tuple[list[News], list[News]]:
    """What is checked now, and what is left out."""
    if len(news) <= MAX_NEWS_PER_READING:
        return news, []
    sure = MAX_NEWS_PER_READING // 2
    rest = random.sample(news[sure:], len(news) - sure)
    return news[:sure] + rest[:sure], rest[sure:]


def _order(lease: Lease) -> tuple[float, int]:
    """Of one peer's leases, the later has the greater."""
    return lease.issued_at, lease.serial


def no_such_run(run: str, owner: str | None) -> AddressError:
    whose = f" of owner {owner}" if owner else ""
    return AddressError(
        f"the DHT is reached, but knows no run named {run!r}{whose}",
        "check the run's name, and that at least one of its peers is alive",
    )


def no_answer(problem: Exception) -> AddressError:
    """What a DirectoryUnavailable, or time that is up, means to somebody who waits for it."""
    detail = str(problem) or "no answer in time"
    return AddressError(f"the DHT cannot be asked: {detail}", "try again in a moment")


class DhtDirectory:
    """A run's directory on a hivemind DHT; make it with `open_directory`."""

    def __init__(
        self,
        client: SteadyClient,
        run: str,
        owner: str | None,
        identity: Identity | None,
        events: EventSink | None = None,
    ) -> None:
        self.run = check_run_name(run)
        self.owner = owner
        """Peer id of the founder; found out by `read_manifest` if it was not named."""
        self._client = client
        self._identity = identity
        self._reader = RecordReader(events)
        self._places = LeasePlaces()

    async def publish_lease(self, lease: Lease) -> bool:
        assert self._identity is not None, "an onlooker publishes nothing"
        assert self.owner is not None, "read or publish the manifest first"
        expires_at = time.time() + LEASE_SECONDS
        record = encode_lease(lease, self.run, self.owner, self._identity, expires_at)
        places = self._places.to_store(lease.peer_id, time.monotonic())
        keys = [lease_key(self.run, self.owner, place) for place in places]
        stored = [self._store(key, lease.peer_id, record, expires_at) for key in keys]
        return any(await asyncio.gather(*stored))

    async def read_leases(self) -> dict[str, Lease]:
        if self.owner is None:
            await self.read_manifest()
        assert self.owner is not None
        shards = self._places.to_read(time.monotonic())
        keys = [lease_key(self.run, self.owner, shard) for shard in shards]
        (in_root, root_complete), (in_shards, shards_complete) = await asyncio.gather(
            self._fetch([lease_key(self.run, self.owner)]), self._fetch(keys)
        )
        leases = self._reader.leases([*in_root, *in_shards], self.run, self.owner)
        self._places.found(
            leases.keys() & {author for author, _ in in_root},
            leases.keys() & {author for author, _ in in_shards},
            root_complete and shards_complete,
            time.monotonic(),
        )
        return leases

    async def publish_manifest(self, record: bytes) -> bool:
        manifest = decode_manifest(record, self.run, self.owner)
        self.owner = manifest.owner
        self._reader.believe_members_of(manifest)
        keys = manifest_key(self.run, manifest.owner), index_key(self.run)
        stored = [await self._client.keep(key, manifest.owner, to_text(record)) for key in keys]
        return all(stored) or record in [r for _, r in (await self._fetch(keys[:1]))[0]]

    async def read_manifest(self) -> tuple[Manifest, bytes]:
        key = index_key(self.run) if self.owner is None else manifest_key(self.run, self.owner)
        began, is_answered = time.monotonic(), False
        for widely in itertools.cycle((False, True)):
            found, complete = await self._fetch([key], widely)
            answer = self._reader.manifest(found, self.run, self.owner)
            if answer is not None:
                self.owner = answer[0].owner
                self._reader.believe_members_of(answer[0])
                return answer
            is_answered = is_answered or (widely and complete)
            passed_s = time.monotonic() - began
            if is_answered and passed_s >= MANIFEST_SECONDS:
                break
            if passed_s >= MANIFEST_PATIENCE_SECONDS:
                raise no_answer(TimeoutError())
            await asyncio.sleep(MANIFEST_RETRY_SECONDS)
        raise no_such_run(self.run, self.owner)

    async def visible_addresses(self) -> tuple[str, ...]:
        answer = await self._client.call("addresses")
        return rank_addresses(answer["addresses"], primary_host())

    async def neighbours(self) -> tuple[str, ...]:
        return tuple((await self._client.call("neighbours"))["peer_ids"])

    def contacts(self) -> tuple[str, ...]:
        return self._client.contacts

    async def close(self) -> None:
        await self._client.close()

    async def _store(self, key: str, subkey: str, record: bytes, expires_at: float) -> bool:
        answer = await self._client.call(
            "store", key=key, subkey=subkey, record=to_text(record), expires_at=expires_at
        )
        return bool(answer["stored"])

    async def _fetch(
        self, keys: Sequence[str], widely: bool = False
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """What lies under `keys`, by subkey, and whether all that were asked have answered."""
        if not keys:
            return [], True
        deadline_s = WIDE_READ_SECONDS if widely else READ_SECONDS
        answer = await self._client.call(
            "fetch",
            timeout_s=deadline_s + CALL_MARGIN_SECONDS,
            keys=list(keys),
            deadline_s=deadline_s,
            widely=widely,
        )
        found = [(subkey, from_text(record)) for subkey, record in answer["records"]]
        return found, bool(answer["complete"])


async def open_directory(
    run: str, owner: str | None, node: NodeSettings, events: EventSink | None = None
) -> DhtDirectory:
    """Starts a DHT node in its own process and looks at one run through it.

    Raises: AddressError, PortInUseError, StorageError, UserError; nothing is left behind then.
    """
    check_run_name(run)
    identity = None
    if node.identity_path is not None:
        identity = Identity.load_or_create(Path(node.identity_path))
    client = SteadyClient(node, events)
    await client.start()
    return DhtDirectory(client, run, owner, identity, events)


def primary_host() -> str | None:
    """Our address on the default route; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: an address nobody has
        except OSError:
            return None
        return str(probe.getsockname()[0])
