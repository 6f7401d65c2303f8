"""DHT node: uses hivemind on top of a libp2p daemon that is already running.

This module is imported in the DHT process only: importing hivemind takes two seconds and starts
threads. hivemind's own caches, reuse of requests and background refreshes are switched off: a lease
is new for seconds only, so every reading asks the nodes that store it.
"""

import asyncio
import contextlib
import itertools
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
from atom.swarm.dht.guard import GuardedP2P, install
from atom.swarm.dht.p2pd import NodeSettings, explain_refusal, explain_unreachable
from atom.swarm.dht.storage import BoundedStorage, RecordGate, unpack_record
from atom.swarm.records.manifest import MAX_RECORD_BYTES

DIAL_SECONDS = 8.0
CALL_SECONDS = 3.0
"""Time after which a node that does not answer is skipped."""
ENOUGH_SECONDS = 0.5
"""Time for which `store` waits for nodes to take a record."""
HOLDERS_SECONDS = 10.0
"""Time for which the holders of a key are remembered. Readers ask more nodes than hold a record, so
they also find holders that are newer."""
REPLICAS = 5
BEAM = 8
"""Nodes asked per key, nearest first: the replicas, and a few in case some have just joined."""
WIDE_BEAM = 64
WIDE_CALLS = 16
"""Nodes asked at once in a wide search: some of them keep silent, for three seconds each."""
MAX_BANNED = 1024
"""Bound of the peers whose failures to answer are remembered."""
MAX_CONTACTS = 64
"""Bound of the remembered contacts, without the nodes that the settings name."""

Entries = dict[str, tuple[bytes, float]]
"""Signed records and their expiry (DHT time), by subkey."""


def with_contact(contacts: Sequence[str], peer_id: str, places: Sequence[str]) -> Sequence[str]:
    """Return the contacts with a peer added that is now connected.

    Two multiaddrs of each peer are kept, the latest and the one before. A peer without a fixed port
    has another port after each start, and a peer that dialled us may show a port on which it does
    not listen.

    Args:
        contacts: Multiaddrs of DHT nodes, newest first.
        peer_id: Peer that is connected.
        places: Multiaddrs of its connections.
    """
    before = [each for each in contacts if peer_id_in(each) == peer_id]
    if not places or (before and before[0] in places):
        return contacts
    others = (each for each in contacts if each not in before[1:])
    return (places[0], *others)[:MAX_CONTACTS]


def unpacked(found: Any) -> Entries:
    """Return the signed records in a dictionary of hivemind; none for None."""
    items = () if found is None else found.value.items()
    records = ((name, unpack_record(value), end) for name, (value, end) in items)
    return {name: (record, end) for name, record, end in records if record is not None}


def newest(*readings: Entries) -> Entries:
    """Merge readings; for each peer, keep the record that expires last."""
    merged: Entries = {}
    for name, entry in itertools.chain.from_iterable(each.items() for each in readings):
        if name not in merged or entry[1] > merged[name][1]:
            merged[name] = entry
    return merged


class DhtNode:
    """Member or observer of the DHT. All methods must be called in one event loop."""

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
        """Nearest nodes by key, with the time until which they are remembered."""
        self._gifts: set[asyncio.Task[None]] = set()
        self._contacts = settings.contacts
        self._last: dict[str, Entries] = {}
        """Records of the last reading, by key."""

    async def open(self) -> None:
        """Join the DHT, or begin a new one if the settings name no nodes.

        Raises:
            AddressError: No named node can be reached, or the node refuses us; it says why.
        """
        P2P._UNIX_SOCKET_PREFIX = f"/unix{self._p2pd_socket.parent}/"
        self._p2p = await GuardedP2P.replicate(Multiaddr(f"/unix{self._p2pd_socket}"))
        self._p2p.known = lambda: self._gate.known
        reached = await self._dial_initial_peers()
        install()
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
        # Any node may make ours cache a record, which would hide all stored ones under its key.
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
        """Store a record here and at the holders of its key; a later record there stays.

        It is stored here first: a silent neighbour can delay the search for the holders by seconds,
        and peers that ask us until then should get the new record.

        Args:
            key: A lease key or a manifest key.
            subkey: Peer id of the record's author.
            record: Signed record.
            expires_at: Expiry, DHT time in seconds.
            known: Peer ids whose records come first and always have a place here. Holds until the
                next call of `store` or `fetch`.
            only_known: Refuse all other peers' records under this key. Holds until the next call
                with this key.
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
        """Read the records under a key.

        One holder is asked first, a different one each time, so that all holders share the uploads.
        Its answer is rejected if it lacks our own record, which was sent to every holder (an
        observer has none and looks for a record of any peer in `known`). Then all are asked.

        Records of the last reading and of our own storage are added, because a node that holds a
        record may just have died. They are signed and dated, so at worst they are old.

        Args:
            key: A lease key or a manifest key.
            deadline_s: Time in seconds after which the search is cancelled.
            widely: Ask many nodes at once instead. A manifest is stored once a minute, and in a
                young DHT a dozen nodes may have come nearer to its key since.
            known: Peer ids whose records come first; holds as in `store`.
            only_known: Ignore all other records; holds as in `store`.

        Returns:
            Records with their subkeys (if there are too many, a random sample of the records of
            unknown peers), and True if the search ended in time.
        """
        key_id, began = DHTID.generate(key), self._clock.now()
        self._gate.use(key_id, known, only_known)
        found = None if widely else await self._ask_one_holder(key_id, known, deadline_s / 2)
        if found is None:
            left_s = deadline_s - (self._clock.now() - began)
            found = await self._ask_all_holders(key, left_s, widely)
        entries = newest(self._last.get(key, {}), self._stored(key), found or {})
        now = time.time()
        self._last[key] = {
            subkey: entries[subkey]
            for subkey in self._gate.first(entries)
            if entries[subkey][1] > now and (subkey in known or not only_known)
        }
        return [(name, record) for name, (record, _) in self._last[key].items()], found is not None

    async def _ask_one_holder(
        self, key_id: DHTID, known: Sequence[str], patience_s: float
    ) -> Entries | None:
        """Return the records at one holder; None if it does not answer or lacks a due record."""
        due = set(known) if self._settings.client_mode else {self._p2p.peer_id.to_base58()}
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                if holders := await self._holders_of(key_id):
                    holders.append(holders.pop(0))
                    answer = await self._node._call_find_with_blacklist(holders[-1], [key_id])
                    found = answer and answer[key_id][0]
        entries = unpacked(found)
        return entries if due & entries.keys() else None

    async def _ask_all_holders(self, key: str, patience_s: float, widely: bool) -> Entries | None:
        """Return the newest records at all holders; None if one of them keeps silent."""
        searches = await self._node.get_many(
            [key],
            sufficient_expiration_time=float("inf"),
            beam_size=WIDE_BEAM if widely else BEAM,
            num_workers=WIDE_CALLS if widely else None,
            return_futures=True,
        )
        search = searches[key]
        await asyncio.wait({search}, timeout=patience_s)
        if not search.done():
            search.cancel()
            return None
        found = search.result()
        stored = {} if found is None else found.value
        return {name: (each.value, each.expiration_time) for name, each in stored.items()}

    async def addresses(self) -> list[str]:
        """Return the multiaddrs that other nodes may dial, as far as libp2p knows now."""
        return [str(address) for address in await self._p2p.get_visible_maddrs(latest=True)]

    async def contacts(self) -> list[str]:
        """Return the multiaddrs of DHT nodes to dial after a restart."""
        await self._meet_neighbours()
        return self._entrances()[:MAX_CONTACTS]

    async def redial(self) -> None:
        """Dial some contacts that have dropped out of our tables, to rejoin after an outage.

        A node forgets neighbours that do not answer, so a node that was cut off for a while has no
        neighbour left. And two halves of a split DHT do not search for each other.
        """
        if len(self._node.blacklist.ban_counter) > MAX_BANNED:
            self._node.blacklist.clear()  # hivemind removes no entry; a liar can name any number
        known = await self._meet_neighbours()
        lost = [each for each in self._entrances() if peer_id_in(each) not in known]
        for address in random.sample(lost, min(4, len(lost))):
            if await self._dial(address) is None:
                await self._node.protocol.call_ping(PeerID.from_base58(peer_id_in(address)))

    async def until_deaf(self) -> None:
        """Return when hivemind no longer reads from p2pd.

        Either p2pd has ended, or an answer to a call that was just cancelled has ended hivemind's
        reader, without any other sign of a failure.
        """
        control = self._p2p._client.control
        ears = {control._read_task, control._write_task}
        await asyncio.wait(ears, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop the node and all work that it began."""
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
        """Connect to a node; return None, or libp2p's message if that fails."""
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
        """Return the peer ids in our tables; remember the addresses of the connected ones."""
        table = self._node.protocol.routing_table
        known = {peer.to_base58() for peer in table.uid_to_peer_id.values()}
        for info in await self._p2p.list_peers():
            peer = info.peer_id.to_base58()
            if peer in known:
                places = [f"{address}/p2p/{peer}" for address in info.addrs]
                self._contacts = with_contact(self._contacts, peer, places)
        return known

    def _entrances(self) -> list[str]:
        """Return the multiaddrs of nodes met, newest first, then of nodes named in the settings."""
        return list(dict.fromkeys((*self._contacts, *self._settings.initial_peers)))

    async def _holders_of(self, key_id: DHTID) -> list[Any]:
        """Return the nodes nearest to the key, in random order.

        hivemind asks up to twenty nodes, and each would answer with all its records under the key.
        So they are asked for the adjacent key: the same nodes are nearest to it, and no record is
        stored under it.
        """
        until, holders = self._holders.get(key_id, (0.0, []))
        if not holders or self._clock.now() >= until:
            neighbour = DHTID(key_id ^ 1)
            found = await self._node.find_nearest_nodes(
                [neighbour], k_nearest=REPLICAS, beam_size=BEAM, exclude_self=True
            )
            holders = list(found[neighbour].values())
            random.shuffle(holders)
            self._holders[key_id] = self._clock.now() + HOLDERS_SECONDS, holders
        return holders

    async def _give(
        self, peer: Any, key_id: DHTID, subkey: str, value: bytes, expires_at: float
    ) -> None:
        taken = await self._node.protocol.call_store(peer, [key_id], [value], expires_at, [subkey])
        if taken is None:  # no answer: find other holders next time
            self._node.blacklist.register_failure(peer)
            self._holders.pop(key_id, None)

    def _stored(self, key: str) -> Entries:
        return unpacked(self._node.protocol.storage.get(DHTID.generate(key)))
