"""The one door to hivemind: a DHT node on top of a libp2p daemon that is already running.

Runs in the DHT process only (importing hivemind takes two seconds and brings threads along).
The library's own caches, reuse of requests and background refreshes are switched off: a lease is
news for seconds, and every reading asks the nodes that store it.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

from atom.base.clock import BootClock, Clock
from atom.swarm.addresses import peer_id_in
from atom.swarm.dht.p2pd import NodeSettings, explain_refusal, explain_unreachable
from atom.swarm.dht.storage import BoundedStorage, RecordGate
from atom.swarm.records.manifest import MAX_RECORD_BYTES

DIAL_SECONDS = 8.0
CALL_SECONDS = 3.0
"""A node that does not answer in this time is passed over."""
ENOUGH_SECONDS = 0.5
"""A node that has not taken a record by then is not waited for."""
HOLDERS_SECONDS = 10.0
"""Nodes that came nearer since are found by readers, who ask more nodes than hold a record."""
REPLICAS = 5
BEAM = 8
"""Nodes asked per key, nearest first: the replicas, and a few in case some have just joined."""
WIDE_BEAM = 64
WIDE_CALLS = 16
"""At once: some of so many nodes keep silent, three seconds each."""
MAX_CONTACTS = 64
"""Beside those that people named."""

Entries = dict[str, tuple[bytes, float]]
"""Signed records and the DHT times of their ends, by subkey."""


def with_contact(contacts: Sequence[str], peer_id: str, places: Sequence[str]) -> Sequence[str]:
    """Multiaddrs of DHT nodes, newest first, once that peer is connected from `places`. Of each the
    place where it was met last, and the one before: without a port of its own a peer has another
    one after each start, and whoever dialled us may show one where nobody listens."""
    before = [each for each in contacts if peer_id_in(each) == peer_id]
    if not places or (before and before[0] in places):
        return contacts
    others = (each for each in contacts if each not in before[1:])
    return (places[0], *others)[:MAX_CONTACTS]


class DhtNode:
    """A member (or onlooker) of the DHT. All methods belong to one event loop."""

    def __init__(
        self, settings: NodeSettings, p2pd_socket: Path, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or BootClock()
        self._p2pd_socket = p2pd_socket
        self._gate = RecordGate()
        self._p2p: Any = None
        self._node: Any = None
        self._holders: dict[DHTID, tuple[float, list[Any]]] = {}
        """By key, until when they are known."""
        self._gifts: set[asyncio.Task[None]] = set()
        self._contacts = settings.contacts
        self._last: dict[str, Entries] = {}
        """What the last reading of a key found."""

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
            raise explain_refusal(str(error)) from None
        self._node.protocol.storage = BoundedStorage(self._gate)
        # Any node may tell ours to cache a record: it would stand for all that is kept beside it.
        self._node.protocol.cache.maxsize = 0
        self._node.protocol._validate_dictionary = self._gate.keep_valid

    async def store(
        self,
        key: str,
        subkey: str,
        record: bytes,
        expires_at: float,
        known: Sequence[str] = (),
        only_known: bool = False,
    ) -> None:
        """Stores it here, and at the nodes in charge, unless they hold one that expires later.

        `known`: whose records under this key have a place here and come first; `only_known`: those
        of others are neither kept nor believed. Both hold until they are said anew.

        It is stored here first: a neighbour that keeps silent delays the search for the nodes
        in charge by seconds, and whoever asks us meanwhile should hear the news.
        """
        assert len(record) <= MAX_RECORD_BYTES
        key_id, value = DHTID.generate(key), MSGPackSerializer.dumps(record)
        self._gate.use(key_id, known, only_known)
        if not self._settings.client_mode:
            self._node.protocol.storage.store_subkey(key_id, subkey, value, expires_at)
        gifts = {
            asyncio.create_task(self._give(peer, key_id, subkey, value, expires_at))
            for peer in await self._holders_of(key_id)
        }
        self._gifts |= gifts
        for gift in gifts:
            gift.add_done_callback(self._gifts.discard)
        if gifts:
            await asyncio.wait(gifts, timeout=ENOUGH_SECONDS)

    async def fetch(
        self,
        key: str,
        deadline_s: float,
        widely: bool = False,
        known: Sequence[str] = (),
        only_known: bool = False,
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """The records under `key` with their subkeys, and whether the search ended in time. Of a
        crowd, some; `known` and `only_known` as in `store`.

        `widely` asks many nodes: what is stored anew only once a minute lies with those that were
        nearest then, and in a young DHT a dozen may have come nearer since.

        A search that did not end (a node that holds the record may just have died) is answered from
        what is stored here and from the last reading: signed and dated, so merely old.
        """
        self._gate.use(DHTID.generate(key), known, only_known)
        searches = await self._node.get_many(
            [key],
            sufficient_expiration_time=float("inf"),
            beam_size=WIDE_BEAM if widely else BEAM,
            num_workers=WIDE_CALLS if widely else None,
            return_futures=True,
        )
        search = searches[key]
        await asyncio.wait({search}, timeout=deadline_s)
        is_complete = search.done()
        if is_complete:
            found = search.result()
            stored = {} if found is None else found.value
            entries = {name: (each.value, each.expiration_time) for name, each in stored.items()}
        else:
            search.cancel()
            entries = self._last.get(key, {}) | self._stored_here(key)
        if only_known:  # others may have been stored here before we knew that
            entries = {name: entry for name, entry in entries.items() if name in known}
        self._last[key] = {subkey: entries[subkey] for subkey in self._gate.first(entries)}
        now = time.time()
        alive = [(name, record) for name, (record, end) in self._last[key].items() if end > now]
        return alive, is_complete

    async def addresses(self) -> list[str]:
        """Multiaddrs others may dial, as far as we know today."""
        return [str(address) for address in await self._p2p.get_visible_maddrs(latest=True)]

    async def contacts(self) -> list[str]:
        """Multiaddrs of DHT nodes worth remembering for a restart."""
        await self._meet_neighbours()
        return self._entrances()[:MAX_CONTACTS]

    async def redial(self) -> None:
        """Finds the way back after an outage: asks contacts that dropped out of our tables.

        A node forgets neighbours that do not answer, so one that was cut off for a while knows
        nobody; and two halves of a torn DHT do not look for each other.
        """
        known = await self._meet_neighbours()
        lost = [each for each in self._entrances() if peer_id_in(each) not in known]
        for address in random.sample(lost, min(4, len(lost))):
            if await self._dial(address) is None:
                await self._node.protocol.call_ping(PeerID.from_base58(peer_id_in(address)))

    async def until_deaf(self) -> None:
        """Returns when hivemind no longer listens to p2pd, as that has ended, or an answer to a
        call that was broken off at that moment has ended its reader: all looks well then."""
        control = self._p2p._client.control
        ears = {control._read_task, control._write_task}
        await asyncio.wait(ears, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        if self._node is not None:
            for gift in self._gifts:
                gift.cancel()
            await asyncio.gather(*self._gifts, return_exceptions=True)
            await self._node.shutdown()
        if self._p2p is not None:
            await self._p2p.shutdown()

    async def _dial_initial_peers(self) -> list[str]:
        addresses = self._entrances()
        failures = await asyncio.gather(*(self._dial(address) for address in addresses))
        reached = [a for a, failure in zip(addresses, failures, strict=True) if failure is None]
        if self._settings.initial_peers and not reached:
            raise explain_unreachable(addresses, [f or "" for f in failures])
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

    async def _meet_neighbours(self) -> set[str]:
        """Peer ids in our tables; notes where those are that we are connected with."""
        table = self._node.protocol.routing_table
        known = {peer.to_base58() for peer in table.uid_to_peer_id.values()}
        for info in await self._p2p.list_peers():
            peer = info.peer_id.to_base58()
            if peer in known:
                places = [f"{address}/p2p/{peer}" for address in info.addrs]
                self._contacts = with_contact(self._contacts, peer, places)
        return known

    def _entrances(self) -> list[str]:
        """Nodes met, newest first, and those that people named."""
        return list(dict.fromkeys((*self._contacts, *self._settings.initial_peers)))

    async def _holders_of(self, key_id: DHTID) -> list[Any]:
        """The nodes nearest to the key. hivemind looks for them anew with every record: it asks up
        to twenty nodes, which answer with all that lies under the key."""
        until, holders = self._holders.get(key_id, (0.0, []))
        if not holders or self._clock.now() >= until:
            found = await self._node.find_nearest_nodes(
                [key_id], k_nearest=REPLICAS, beam_size=BEAM, exclude_self=True
            )
            holders = list(found[key_id].values())
            self._holders[key_id] = self._clock.now() + HOLDERS_SECONDS, holders
        return holders

    async def _give(
        self, peer: Any, key_id: DHTID, subkey: str, value: bytes, expires_at: float
    ) -> None:
        taken = await self._node.protocol.call_store(peer, [key_id], [value], expires_at, [subkey])
        if taken is None:  # it gave no answer: others are to be found in its place
            self._node.blacklist.register_failure(peer)
            self._holders.pop(key_id, None)

    def _stored_here(self, key: str) -> Entries:
        item = self._node.protocol.storage.get(DHTID.generate(key))
        stored = () if item is None else item.value.items()
        return {subkey: (MSGPackSerializer.loads(value), end) for subkey, (value, end) in stored}
