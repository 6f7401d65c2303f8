"""Guard between libp2p's daemon and hivemind: bounds on all that other nodes send.

hivemind answers any request of anyone. The guard sits under its protocol class, where the bytes of
requests and of answers arrive, and applies five rules before hivemind sees a message:

- Allowances. Each peer that the run knows has one for the bytes of its requests and of our
  answers. All strangers at one host share one: their ids are free, and hosts are not.
- Bounds. A message names few keys, few neighbours, and ids of the right length.
- Values are read by `decode_value`, never by hivemind's own decoder.
- An answer of ours that no daemon can carry is not sent. libp2p's daemon would end the connection
  to this process for it.
- The routing table has one node id per peer and few replacements per bucket.

A refused request costs one small answer and writes nothing into the log.

hivemind's own decoder runs before a signature can be checked, and it is recursive: its extension
type for tuples holds MessagePack again, so 1.5 kB of nested tuples overflow the stack of a process,
and each unknown extension type writes a line into the log. Atom needs two shapes only:

    scalar        nil, bool, int, float, text, bytes
    dictionary    extension 0x50: [maximum size, latest end, [[subkey, value, end], ...]]

`decode_value` reads these two in one pass, without recursion, and refuses all other bytes. It
does not call the msgpack library: each bound is visible here. An alternative was to call msgpack
with its length limits; it still parses nested arrays of any shape before the caller sees them.
"""

import asyncio
import contextlib
import functools
import math
import struct
from collections.abc import Awaitable, Callable, Container
from typing import Any

import hivemind.dht.node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer

from atom.base.clock import BootClock
from atom.base.errors import PeerRefused, Reason
from atom.swarm.addresses import host_group
from atom.swarm.dht.p2pd import MAX_MESSAGE_BYTES
from atom.swarm.stream.bandwidth import TokenBucket

MAX_KEYS = 4
"""Keys of one request. A reader of a run names one."""
MAX_NEIGHBOURS = 32
"""Nearest nodes of one answer. hivemind sends at most 20."""
MAX_PEER_ID_BYTES = 64
"""Bytes of a libp2p peer id: at most 42. Its conversion to text takes quadratic time."""
MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES - (64 << 10)
"""Bytes of one answer, without the header of libp2p's daemon."""
UNIT_BYTES = 64 << 10
"""A request costs one unit, and one more for each of these bytes of its answer."""
REQUEST_WEIGHT = 16
"""Cost of one byte of a request, in bytes of an answer. A request of 64 KiB may hold 170 records,
and to check their signatures takes this process 46 ms."""
UNITS_PER_SECOND = 32.0
"""Allowance of one debtor. A peer of a swarm of 300 needs about half of it, so two newcomers to
such a swarm may share a home."""
UNITS_AT_ONCE = 128.0
MAX_DEBTORS = 4096
"""Debtors that are remembered. The debtor that was quiet for the longest time is dropped."""
PAUSE_PER_CONNECTION = 0.001
"""Seconds before a listing of the connections, for each connection of the last listing. That takes
0.1 ms for each, so remotes that connect without end use a tenth of this process for it."""
MAX_VALUE_BYTES = 2 << 20
"""Bytes of one encoded value. libp2p's daemon carries no longer message."""
MAX_ITEMS = 16_384
"""Items of one dictionary. Decoding takes a few microseconds per item, so under 0.1 s in all."""
MAX_SUBKEY_CHARACTERS = 128
"""Characters of a subkey, which is a peer id of 52 characters."""
DICTIONARY_CODE = 0x50
"""Extension type by which hivemind marks a dictionary."""

Scalar = None | bool | int | float | str | bytes
Item = tuple[str, bytes, float]
"""Subkey, encoded value, and Unix time in seconds at which the record ends."""

_NUMBERS = {0xCA + index: struct.Struct(">" + code) for index, code in enumerate("fdBHIQbhiq")}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSION = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
"""Marker byte, and the number of bytes that hold the length."""
_ARRAY_OF_THREE = 0x93


@functools.lru_cache(MAX_DEBTORS)
def allowance_of(debtor: str) -> TokenBucket:
    """Return the units that a known peer, or all strangers at one host, may still cost us."""
    return TokenBucket(UNITS_PER_SECOND, UNITS_AT_ONCE)


def checked(message: Any) -> Any:
    """Return a request or an answer whose fields are within their bounds.

    Of a request to store, only the first entries are kept: a stock node hands a new neighbour all
    that it holds in one request, and forgets a neighbour that refuses.

    Raises:
        PeerRefused: a field is out of its bounds.
    """
    ids, is_bounded = [message.peer.node_id] if message.peer.node_id else [], True
    match message:
        case dht_pb2.StoreRequest():
            entries = message.keys, message.subkeys, message.values
            for field in (*entries, message.expiration_time, message.in_cache):
                del field[MAX_KEYS:]
            ids += message.keys
        case dht_pb2.FindRequest():
            is_bounded = len(set(message.keys)) == len(message.keys) <= MAX_KEYS
            ids += message.keys
        case dht_pb2.StoreResponse():
            is_bounded = len(message.store_ok) <= MAX_KEYS
        case dht_pb2.FindResponse():
            is_bounded = len(message.results) <= MAX_KEYS and all(map(_is_bounded, message.results))
            ids += (each for result in message.results for each in result.nearest_node_ids)
    if not is_bounded or any(len(each) != DHTID.HASH_NBYTES for each in ids):
        raise malformed(f"{type(message).__name__} is out of bounds")
    return message


def _is_bounded(result: Any) -> bool:
    peers = result.nearest_peer_ids
    is_known_type = result.type in dht_pb2.ResultType.values()
    are_few = max(len(result.nearest_node_ids), len(peers)) <= MAX_NEIGHBOURS
    are_peers = are_few and all(0 < len(peer) <= MAX_PEER_ID_BYTES for peer in peers)
    return is_known_type and are_peers and math.isfinite(result.expiration_time)


class _Reader:
    """Position in a byte string that is read once from front to end."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            PeerRefused: Fewer bytes are left.
        """
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            raise malformed("a value ends early")
        self._at += count
        return taken

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "big")

    def expect(self, due: int, size_bytes: int = 1) -> None:
        """Skip one number.

        Raises:
            PeerRefused: The number is not the expected one.
        """
        if (found := self.number(size_bytes)) != due:
            raise malformed(f"{found:#x} instead of {due:#x}")

    def left(self) -> int:
        """Return the number of bytes that were not read."""
        return len(self._raw) - self._at

    def scalar(self) -> Scalar:
        """Return the next value.

        Raises:
            PeerRefused: The value is an array, a map or an extension.
        """
        marker = self.number(1)
        if marker < 0x80 or marker >= 0xE0:
            return marker if marker < 0x80 else marker - 0x100
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if number := _NUMBERS.get(marker):
            return number.unpack(self.take(number.size))[0]  # type: ignore[no-any-return]
        if marker in _BYTES:
            return self.take(self.number(_BYTES[marker]))
        if 0xA0 <= marker < 0xC0 or marker in _TEXT:
            return self.take(self._count(marker, 0xA0, _TEXT)).decode(errors="replace")
        raise malformed(f"type {marker:#x} is not allowed in a value")

    def dictionary(self) -> list[Item]:
        """Return the items of a dictionary. Skips items that can be no signed record."""
        size_bytes = _EXTENSION[self.number(1)]
        self.expect(self.left() - size_bytes - 1, size_bytes)
        self.expect(DICTIONARY_CODE)
        self.expect(_ARRAY_OF_THREE)
        self.scalar(), self.scalar()
        marker = self.number(1)
        count = self._count(marker, 0x90, _ARRAY)
        if (marker not in _ARRAY and marker >> 4 != 9) or count > MAX_ITEMS:
            raise PeerRefused(Reason.TOO_LARGE, f"type {marker:#x} with {count} items")
        return [item for item in (self._item() for _ in range(count)) if _may_be_a_record(item)]

    def _item(self) -> Any:
        self.expect(_ARRAY_OF_THREE)
        return self.scalar(), self.scalar(), self.scalar()

    def _count(self, marker: int, shortest: int, lengths: dict[int, int]) -> int:
        return self.number(lengths[marker]) if marker in lengths else marker - shortest


def _may_be_a_record(item: tuple[Scalar, Scalar, Scalar]) -> bool:
    subkey, value, end = item
    is_named = isinstance(subkey, str) and len(subkey) <= MAX_SUBKEY_CHARACTERS
    return is_named and isinstance(value, bytes) and isinstance(end, float) and math.isfinite(end)


def malformed(detail: str) -> PeerRefused:
    """Return the refusal of bytes that are no message of the DHT."""
    return PeerRefused(Reason.MALFORMED, detail)


def decode_value(raw: bytes) -> Scalar | list[Item]:
    """Decode one value that a stranger sent.

    Args:
        raw: the encoded value, at most MAX_VALUE_BYTES.

    Returns:
        The scalar, or the items of a dictionary in the order in which they were sent.

    Raises:
        PeerRefused: the bytes are too many, or not exactly one scalar or one dictionary.
    """
    if len(raw) > MAX_VALUE_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"a value of {len(raw)} bytes")
    reader = _Reader(raw)
    value = reader.dictionary() if raw and raw[0] in _EXTENSION else reader.scalar()
    if reader.left():
        raise malformed("extra bytes after the value")
    return value


class StrictSerializer(MSGPackSerializer):  # type: ignore[misc]
    """hivemind's encoder with our decoder."""

    @classmethod
    def loads(cls, buf: bytes) -> Any:
        """Decode a scalar or a dictionary.

        Raises:
            PeerRefused: The bytes are anything else.
        """
        value = decode_value(buf)
        if not isinstance(value, list):
            return value
        dictionary = DictionaryDHTValue()
        for item in value:
            dictionary.store(*item)
        return dictionary


class GuardedP2P(P2P):  # type: ignore[misc]
    """hivemind's connection to libp2p's daemon, through which checked messages pass only."""

    def __init__(self) -> None:
        super().__init__()
        self.known: Callable[[], Container[str]] = frozenset
        """Returns the ids of the peers that the run knows."""
        self._clock = BootClock()
        self._hosts: dict[str, str] = {}
        """Host group of each remote that was connected when the connections were listed last."""
        self._listing: asyncio.Task[None] | None = None

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Any, P2PContext], Awaitable[Any]],
        input_protobuf_type: Any,
        balanced: bool = False,
    ) -> None:
        """Register a handler of requests, as hivemind does."""

        async def guarded(request: bytes, remote_id: PeerID) -> bytes:
            try:
                allowance = allowance_of(await self._debtor(remote_id))
                if not allowance.allow(self._clock.now()):
                    raise PeerRefused(Reason.BUSY, "too many requests")
                allowance.take(REQUEST_WEIGHT * len(request) / UNIT_BYTES, self._clock.now())
                message = checked(input_protobuf_type.FromString(request))
                context = P2PContext(handle_name, self.peer_id, remote_id)
                answer: bytes = (await handler(message, context)).SerializeToString()
            except asyncio.CancelledError:  # hivemind would remember a cancelled task for ever
                raise PeerRefused(Reason.TIMEOUT, "the caller has disconnected") from None
            allowance.take(len(answer) / UNIT_BYTES, self._clock.now())
            if len(answer) > MAX_ANSWER_BYTES:
                raise PeerRefused(Reason.TOO_LARGE, "the answer")
            return answer

        await self._client.add_unary_handler(handle_name, guarded, balanced=balanced)

    async def _debtor(self, remote: PeerID) -> str:
        """Return the debtor for a remote: itself if the run knows it, otherwise its host group.

        A remote that has hung up already is at no host: all of these share one allowance.
        """
        peer_id: str = remote.to_base58()
        if peer_id in self.known():
            return peer_id
        if peer_id not in self._hosts:
            self._listing = self._listing or asyncio.create_task(self._list_hosts())
            await asyncio.shield(self._listing)  # one listing serves all that wait
        return self._hosts.get(peer_id, "")

    async def _list_hosts(self) -> None:
        await asyncio.sleep(PAUSE_PER_CONNECTION * len(self._hosts))
        self._listing = None  # a remote that connects from now on may be missing
        self._hosts = {
            each.peer_id.to_base58(): host_group(str(each.addrs[0]).split("/")[2])
            for each in await self.list_peers()
        }

    async def _call_unary_protobuf_handler(self, *call: Any) -> Any:
        """Call a remote, as hivemind does.

        Raises:
            PeerRefused: The answer is out of bounds.
        """
        return checked(await super()._call_unary_protobuf_handler(*call))


class GuardedProtocol(DHTProtocol):  # type: ignore[misc]
    """hivemind's protocol with a strict decoder and a bounded routing table."""

    serializer = StrictSerializer

    async def update_routing_table(
        self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True
    ) -> None:
        """Note that a node was met, or that it did not answer.

        A node chooses its own id and hivemind keeps every one: a peer that names a new id in each
        request would fill the memory. So a new id of a peer replaces its former one. hivemind also
        keeps every peer that ever named an id, and every id that it ever pinged: of these, only
        the present ones stay.
        """
        table = self.routing_table
        former, holder = table.get(peer_id=peer_id), table.uid_to_peer_id.get(node_id)
        stale = [former] if responded and node_id and former not in (None, node_id) else []
        await super().update_routing_table(node_id, peer_id, responded)
        if node_id is not None:
            if holder != peer_id and table.peer_id_to_uid.get(holder) == node_id:
                del table.peer_id_to_uid[holder]
            bucket = table.buckets[table.get_bucket_index(node_id)]
            bucket.nodes_requested_for_ping &= bucket.nodes_to_peer_id.keys()
            stale += list(bucket.replacement_nodes)[: -bucket.size]
        for each in stale:
            with contextlib.suppress(KeyError):  # hivemind misplaces ids on a bucket's border
                del table[each]


def install() -> None:
    """Make hivemind's nodes use the guarded protocol. Their methods are bound when created."""
    GuardedProtocol.__name__ = DHTProtocol.__name__  # part of the protocol's name on the wire
    hivemind.dht.node.DHTProtocol = GuardedProtocol
