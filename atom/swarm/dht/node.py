"""The one door to hivemind: a DHT node on top of a libp2p daemon that is already running.

Runs in the DHT process only (importing hivemind takes two seconds and brings threads along).
The library's own caches, reuse of requests and background refreshes are switched off: a lease is
news for seconds, and every reading asks the nodes that store it.
"""

import asyncio
import functools
import random
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

from atom.base.clock import BootClock
from atom.base.errors import PeerRefused
from atom.swarm.addresses import peer_id_in
from atom.swarm.dht import errors as dht_errors
from atom.swarm.dht.contacts import Contacts
from atom.swarm.dht.frames import MAX_BYTES_PER_FETCH, MAX_RECORDS_PER_FETCH, NodeSettings
from atom.swarm.dht.holders import Holders
from atom.swarm.dht.storage import MAX_RECORDS_PER_KEY, BoundedStorage, NoStorage
from atom.swarm.records.codec import MAX_RECORD_BYTES, read_claim
from atom.swarm.records.keys import LEASE_DOMAIN, MANIFEST_DOMAIN, Claim
from atom.swarm.records.lease import CLOCKS_APART_SECONDS, LEASE_SECONDS

DIAL_SECONDS = 8.0
CALL_SECONDS = 3.0
"""A node that does not answer in this time is passed over."""
STORE_SECONDS = CALL_SECONDS + 0.5
REPLICAS = 5
BEAM = 8
"""Nodes asked per key, nearest first: the replicas, and a few in case some have just joined."""
WIDE_BEAM = 64
WIDE_CALLS = 16
"""At once: some of so many nodes keep silent, three seconds each."""
MAX_CONTACTS = 64
MAX_RECORDS_PER_ANSWER = 2 * MAX_RECORDS_PER_KEY
"""Under one key. A node of ours keeps half of that and its own record; others may keep a crowd."""
MAX_SECONDS_AHEAD = {LEASE_DOMAIN: 20.0, MANIFEST_DOMAIN: 900.0}
"""Longest time to expiry we store: a lifetime, and amply for clocks that are apart."""
USUAL_SECONDS_AHEAD = MAX_SECONDS_AHEAD | {LEASE_DOMAIN: LEASE_SECONDS + CLOCKS_APART_SECONDS}
"""What an author whose clock is right signs: nothing later is to stand in its way."""


class RecordGate(RecordValidatorBase):  # type: ignore[misc]
    """Lets only well-signed records in their own place pass: what we store and what we are told."""

    def validate(self, record: DHTRecord) -> bool:
        blob = _unpack_bytes(record.value)
        claim = None if blob is None else _claim(blob)
        if claim is None or record.subkey != MSGPackSerializer.dumps(claim.author):
            return False
        if claim.expires_at is not None and claim.expires_at != record.expiration_time:
            return False
        if not record.expiration_time <= time.time() + MAX_SECONDS_AHEAD[claim.kind]:
            return False  # NaN, too: under it nothing would ever end
        return record.key in _key_ids(claim.places())

    def keep_valid(self, key: bytes, dictionary: DictionaryDHTValue) -> bool:
        """Drops what is not valid, where hivemind would refuse the whole dictionary: else one
        bad record, on a node that checks nothing, would hide every good one beside it. Of a crowd,
        the first are looked at (who was there first comes first), the rest are dropped unseen:
        a signature takes a tenth of a millisecond, and the whole node stands still meanwhile."""
        dictionary.maxsize = float("inf")
        with dictionary.freeze():
            for number, (subkey, (value, expires_at)) in enumerate(list(dictionary.items())):
                named = isinstance(subkey, str) and isinstance(value, bytes)
                if not (number < MAX_RECORDS_PER_ANSWER and named) or not self.validate(
                    DHTRecord(key, MSGPackSerializer.dumps(subkey), value, expires_at)
                ):
                    del dictionary[subkey]
        return True


class DhtNode:
    """A member (or onlooker) of the DHT. All methods belong to one event loop."""

    def __init__(self, settings: NodeSettings, p2pd_socket: Path) -> None:
        self._settings = settings
        self._p2pd_socket = p2pd_socket
        self._gate = RecordGate()
        self._p2p: Any = None
        self._node: Any = None
        self._holders: Holders
        self._contacts = Contacts(settings.contacts, settings.initial_peers, MAX_CONTACTS)
        self._last: dict[str, dict[str, tuple[bytes, float]]] = {}

    async def open(self) -> None:
        """Joins the DHT, or begins a new one. Raises: AddressError saying what is in the way."""
        P2P._UNIX_SOCKET_PREFIX = f"/unix{self._p2pd_socket.parent}/"
        self._p2p = await P2P.replicate(Multiaddr(f"/unix{self._p2pd_socket}"))
        reached = await self._dial_initial_peers()
        try:
            self._node = await DHTNode.create(
                p2p=self._p2p,
                initial_peers=reached or None,
                client_mode=self._settings.client_mode,
                record_validator=self._gate,
                num_replicas=REPLICAS,
                wait_timeout=CALL_SECONDS,
                cache_locally=False,
                cache_nearest=0,
                cache_on_store=False,
                cache_refresh_before_expiry=0,
                reuse_get_requests=False,
            )
        except (ValidationError, RuntimeError) as error:
            raise dht_errors.explain_refusal(str(error)) from None
        self._node.protocol.storage = BoundedStorage(BootClock())
        self._node.protocol.cache = NoStorage()
        self._node.protocol._validate_dictionary = self._gate.keep_valid
        self._holders = Holders(self._node, REPLICAS, BEAM, BootClock())

    async def store(self, key: str, subkey: str, record: bytes, expires_at: float) -> bool:
        """Whether some node (ours included) took it; False if they hold one that expires later.

        It is stored here first: a neighbour that keeps silent delays the search for the nodes
        in charge by seconds, and whoever asks us meanwhile should hear the news.
        """
        if len(record) > MAX_RECORD_BYTES:
            return False
        self._node.protocol.storage.use([DHTID.generate(key)])
        here = self._store_here(key, subkey, record, expires_at)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                there = await self._holders.store(key, subkey, record, expires_at)
        except TimeoutError:
            return here
        return here or bool(there)

    async def fetch(
        self, keys: Sequence[str], deadline_s: float, widely: bool = False
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """All records under `keys`, each with its subkey, and whether every search ended in time.

        `widely` asks many nodes: what is stored anew only once a minute lies with those that were
        nearest then, and in a young DHT a dozen may have come nearer since.

        A search that did not (a node that holds the record may just have died) is answered from
        what is stored here and from the last reading: signed and dated, so merely old. If there are
        too many, each key has its share, and who was there first goes before: identities are free,
        and else a crowd of them would hide everybody.
        """
        self._node.protocol.storage.use(map(DHTID.generate, keys))
        searches = await self._node.get_many(
            keys,
            sufficient_expiration_time=float("inf"),
            beam_size=WIDE_BEAM if widely else BEAM,
            num_workers=WIDE_CALLS if widely else None,
            return_futures=True,
        )
        await asyncio.wait(searches.values(), timeout=deadline_s)
        complete = True
        for key, search in searches.items():
            before = self._last.get(key, {})
            if search.done():
                entries = _entries(search.result())
            else:
                search.cancel()
                complete = False
                entries = before | self._stored_here(key)
            by_age = {subkey: entries[subkey] for subkey in before if subkey in entries} | entries
            self._last[key] = _share_of(by_age, len(keys))
        found = [
            (subkey, record)
            for key in searches
            for subkey, (record, expires_at) in self._last[key].items()
            if expires_at > time.time()
        ]
        return found, complete

    async def addresses(self) -> list[str]:
        """Multiaddrs others may dial, as far as we know today."""
        return [str(address) for address in await self._p2p.get_visible_maddrs(latest=True)]

    async def contacts(self) -> list[str]:
        """Multiaddrs of DHT nodes worth remembering for a restart."""
        await self._remember_contacts(self._known())
        return self._contacts.addresses()[:MAX_CONTACTS]

    async def neighbours(self) -> list[str]:
        """Peer ids of the DHT nodes we know that answer right now."""
        known = list(self._node.protocol.routing_table.uid_to_peer_id.values())[:MAX_CONTACTS]
        answers = await asyncio.gather(*(self._node.protocol.call_ping(peer) for peer in known))
        return [p.to_base58() for p, answer in zip(known, answers, strict=True) if answer]

    async def redial(self) -> None:
        """Finds the way back after an outage: asks contacts that dropped out of our tables.

        A node forgets neighbours that do not answer, so one that was cut off for a while knows
        nobody; and two halves of a torn DHT do not look for each other.
        """
        known = self._known()
        await self._remember_contacts(known)
        lost = self._contacts.lost(known)
        for address in random.sample(lost, min(4, len(lost))):
            if await self._dial(address) is None:
                await self._node.protocol.call_ping(PeerID.from_base58(peer_id_in(address)))

    def forget_the_future(self) -> None:
        """The clock was set back. hivemind keeps the record that expires last: those of before
        would keep all news out until the clock has made up for it, and nodes that were silent for
        a moment would be shunned as long."""
        storage, now = self._node.protocol.storage, time.time()
        kept = storage.held()
        storage.clear()
        for key_id, (dictionary, _) in kept:
            if isinstance(dictionary, DictionaryDHTValue):
                for subkey, (value, expires_at) in dictionary.items():
                    if _is_usual(value, expires_at - now):
                        storage.store(key_id, value, expires_at, subkey=subkey)
        self._last.clear()
        self._node.blacklist.clear()

    async def close(self) -> None:
        if self._node is not None:
            await self._holders.close()
            await self._node.shutdown()
        if self._p2p is not None:
            await self._p2p.shutdown()

    async def _dial_initial_peers(self) -> list[str]:
        addresses = self._contacts.addresses()
        failures = await asyncio.gather(*(self._dial(address) for address in addresses))
        reached = [a for a, failure in zip(addresses, failures, strict=True) if failure is None]
        if self._settings.initial_peers and not reached:
            raise dht_errors.explain_unreachable(addresses, [f or "" for f in failures])
        return reached

    async def _dial(self, address: str) -> str | None:
        """None when connected, else libp2p's words for what is wrong."""
        peer_id = peer_id_in(address)
        target = Multiaddr(address[: -len(f"/p2p/{peer_id}")])
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await self._p2p._client.connect(PeerID.from_base58(peer_id), [target])
        except TimeoutError:
            return f"no answer within {DIAL_SECONDS:.0f} s"
        except ControlFailure as error:
            return str(error)
        return None

    def _known(self) -> set[str]:
        table = self._node.protocol.routing_table
        return {peer.to_base58() for peer in table.uid_to_peer_id.values()}

    async def _remember_contacts(self, known: set[str]) -> None:
        for info in await self._p2p.list_peers():
            peer = info.peer_id.to_base58()
            if peer in known:
                self._contacts.meet(peer, [f"{address}/p2p/{peer}" for address in info.addrs])

    def _store_here(self, key: str, subkey: str, record: bytes, expires_at: float) -> bool:
        if self._settings.client_mode:
            return False
        key_id, value = DHTID.generate(key), MSGPackSerializer.dumps(record)
        stored = DHTRecord(key_id.to_bytes(), MSGPackSerializer.dumps(subkey), value, expires_at)
        storage = self._node.protocol.storage
        return self._gate.validate(stored) and bool(storage.keep(key_id, subkey, value, expires_at))

    def _stored_here(self, key: str) -> dict[str, tuple[bytes, float]]:
        item = self._node.protocol.storage.get(DHTID.generate(key))
        if item is None or not isinstance(item.value, DictionaryDHTValue):
            return {}
        entries = {}
        for subkey, (value, expires_at) in item.value.items():
            record = _unpack_bytes(value)
            if record is not None:
                entries[subkey] = (record, expires_at)
        return entries


def _share_of(by_age: dict[str, tuple[bytes, float]], keys: int) -> dict[str, tuple[bytes, float]]:
    """Of the entries under one key of so many: as many as may go on from here, the first first."""
    records, room_bytes = MAX_RECORDS_PER_FETCH // keys, MAX_BYTES_PER_FETCH // keys
    share = {}
    for subkey, (record, expires_at) in islice(by_age.items(), max(1, records)):
        room_bytes -= len(record)
        if room_bytes < 0:
            break
        share[subkey] = record, expires_at
    return share


def _entries(result: Any) -> dict[str, tuple[bytes, float]]:
    if result is None or not isinstance(result.value, dict):
        return {}
    return {subkey: (entry.value, entry.expiration_time) for subkey, entry in result.value.items()}


def _is_usual(value: bytes, seconds_ahead: float) -> bool:
    record = _unpack_bytes(value)
    claim = None if record is None else _claim(record)
    return claim is not None and seconds_ahead <= USUAL_SECONDS_AHEAD[claim.kind]


def _unpack_bytes(packed: bytes) -> bytes | None:
    """The content of a MessagePack byte string, or None for any other thing or size."""
    for marker, size_bytes in ((0xC4, 1), (0xC5, 2)):
        start = 1 + size_bytes
        if len(packed) >= start and packed[0] == marker:
            content = packed[start:]
            if len(content) == int.from_bytes(packed[1:start], "big") <= MAX_RECORD_BYTES:
                return content
    return None


@functools.lru_cache(maxsize=MAX_RECORDS_PER_FETCH)
def _key_ids(places: tuple[str, ...]) -> frozenset[bytes]:
    """Of a shard or a manifest, with the other key that belongs to it: the same for many."""
    return frozenset(DHTID.generate(key).to_bytes() for key in places)


@functools.lru_cache(maxsize=4 * MAX_RECORDS_PER_FETCH)
def _claim(record: bytes) -> Claim | None:
    """Signatures are checked once per record, not once per replica that returns it."""
    try:
        return read_claim(record)
    except PeerRefused:
        return None
