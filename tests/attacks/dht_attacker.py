"""A hostile node of the DHT, which sends raw bytes instead of messages, and its victim."""

import asyncio
import contextlib
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from atom.swarm.addresses import parse_listen
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.p2pd import NodeSettings, running_p2pd
from tests.event_list import EventList

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    import msgpack
    from hivemind.dht.routing import DHTID
    from hivemind.p2p import P2P, PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import (
        P2PDaemonError,
        P2PHandlerError,
        read_pbmsg_safe,
        write_pbmsg,
        write_unsigned_varint,
    )
    from hivemind.proto import dht_pb2, p2pd_pb2
    from hivemind.utils.multiaddr import Multiaddr

REFUSED = (P2PDaemonError, P2PHandlerError)
ANSWER_SECONDS = 20.0
TUPLE_CODE = 0x40
KEY_BYTES = DHTID.HASH_NBYTES


def nested_tuples(depth: int) -> bytes:
    """Return tuples within tuples, each an extension type that holds MessagePack."""
    packed: bytes = msgpack.packb([])
    for _ in range(depth):
        packed = msgpack.packb(msgpack.ExtType(TUPLE_CODE, b"\x91" + packed))
    return packed


def store_request(value: bytes, expires_at: float = 9e9, count: int = 1) -> bytes:
    """Return a request to store a whole dictionary under `count` keys."""
    request = dht_pb2.StoreRequest(
        keys=[number.to_bytes(KEY_BYTES, "big") for number in range(count)],
        subkeys=[b""] * count,
        values=[value] * count,
        expiration_time=[expires_at] * count,
        in_cache=[False] * count,
    )
    return bytes(request.SerializeToString())


class Attacker:
    """A libp2p host of its own identity that speaks hivemind's protocol in raw bytes."""

    def __init__(self, p2p: P2P, victim_address: str) -> None:
        self._p2p = p2p
        self.peer_id = str(p2p.peer_id.to_base58())
        self._victim = PeerID.from_base58(victim_address.rpartition("/p2p/")[2])
        self._address = Multiaddr(victim_address.rpartition("/p2p/")[0])

    async def connect(self) -> None:
        await self._p2p._client.connect(self._victim, [self._address])

    async def send(self, method: str, request: bytes) -> bytes:
        """Return the victim's answer. Raises: one of REFUSED."""
        async with asyncio.timeout(ANSWER_SECONDS):
            answer: bytes = await self._p2p._client.call_unary_handler(
                self._victim, f"DHTProtocol.{method}", request
            )
        return answer

    async def answer(self, method: str, respond: Callable[[bytes], bytes]) -> None:
        """Answer requests of the victim with the bytes that `respond` returns."""

        async def handler(request: bytes, _: PeerID) -> bytes:
            return respond(request)

        await self._p2p._client.add_unary_handler(f"DHTProtocol.{method}", handler)

    async def lie_beside(self, key: str, find: Callable[[bytes], Any]) -> Counter[str]:
        """Join the DHT as the nearest node to a key, which takes every record.

        Args:
            key: Key that the victim looks for.
            find: Returns the results of a request to find keys.

        Returns:
            How often the victim asked, by method; counted from now on.
        """
        near = dht_pb2.NodeInfo(node_id=(DHTID.generate(key) ^ 2).to_bytes(KEY_BYTES, "big"))
        answers = {
            "rpc_find": lambda raw: dht_pb2.FindResponse(results=find(raw), peer=near),
            "rpc_store": lambda raw: dht_pb2.StoreResponse(store_ok=[True], peer=near),
            "rpc_ping": lambda raw: dht_pb2.PingResponse(peer=near, dht_time=time.time()),
        }
        asked = Counter[str]()

        def respond(method: str, raw: bytes) -> bytes:
            asked[method] += 1
            return bytes(answers[method](raw).SerializeToString())

        for method in answers:
            await self.answer(method, partial(respond, method))
        await self.send("rpc_ping", dht_pb2.PingRequest(peer=near).SerializeToString())
        return asked

    async def protocols_include(self, protocol: str) -> bool:
        """Return True if the victim accepts a stream of this libp2p protocol."""
        async with contextlib.AsyncExitStack() as streams:
            return await self._open(protocol, streams) is not None

    async def announce(
        self, method: str, size_bytes: int, streams: contextlib.AsyncExitStack
    ) -> None:
        """Open a stream, announce a request of this size, and send its first byte only."""
        writer = await self._open(f"DHTProtocol.{method}", streams)
        assert writer is not None
        await write_unsigned_varint(writer, size_bytes)
        writer.write(b"x")
        await writer.drain()

    async def _open(
        self, protocol: str, streams: contextlib.AsyncExitStack
    ) -> asyncio.StreamWriter | None:
        """Open a libp2p stream that `streams` closes. Returns: None if the victim refuses it."""
        connector = self._p2p._client.control.daemon_connector
        reader, writer = await connector.open_connection()
        streams.push_async_callback(writer.wait_closed)
        streams.callback(writer.close)
        wanted = p2pd_pb2.StreamOpenRequest(peer=self._victim.to_bytes(), proto=[protocol])
        kind = p2pd_pb2.Request.STREAM_OPEN
        await write_pbmsg(writer, p2pd_pb2.Request(type=kind, streamOpen=wanted))
        response = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, response)
        return writer if response.type == p2pd_pb2.Response.OK else None


@contextlib.asynccontextmanager
async def attacker_of(victim_address: str, host: str = "127.0.0.1") -> AsyncIterator[Attacker]:
    """An attacker at a host that is connected to the victim."""
    with tempfile.TemporaryDirectory(prefix="atk-") as folder:
        listen = parse_listen(f"{host}:0")
        async with running_p2pd(Path(folder), NodeSettings(), listen) as socket_path:
            with contextlib.ExitStack() as stack:
                before = P2P._UNIX_SOCKET_PREFIX
                stack.callback(setattr, P2P, "_UNIX_SOCKET_PREFIX", before)
                P2P._UNIX_SOCKET_PREFIX = f"/unix{folder}/"
                p2p = await P2P.replicate(Multiaddr(f"/unix{socket_path}"))
            try:
                attacker = Attacker(p2p, victim_address)
                await attacker.connect()
                yield attacker
            finally:
                await p2p.shutdown()


class Victim:
    """A DHT node of ours in its own process, as a daemon runs it."""

    def __init__(self, client: DhtClient, events: EventList, log: Path, address: str) -> None:
        self.client, self.address = client, address
        self.events, self.log = events, log
        assert client._process is not None
        self.node = psutil.Process(client._process.pid)
        [self.p2pd] = self.node.children()
        self._rss_bytes = self.node.memory_info().rss

    def grown_bytes(self) -> int:
        """Return the growth of the node's resident memory since its start."""
        return int(self.node.memory_info().rss) - self._rss_bytes

    async def assert_unharmed(self) -> None:
        """Assert that the same process still answers and that no event was emitted."""
        assert await self.client.call("addresses", ANSWER_SECONDS)
        assert self.node.is_running()
        assert self.p2pd.is_running()
        assert self.events.events == []

    async def fetch(self, key: str, **arguments: Any) -> Any:
        return await self.client.call("fetch", 20.0, key=key, deadline_s=5.0, **arguments)


@contextlib.asynccontextmanager
async def victim_in(folder: Path) -> AsyncIterator[Victim]:
    """A victim on the loopback interface."""
    events, log = EventList(), folder / "dht.log"
    client = DhtClient(NodeSettings(log_path=str(log)), events)
    await client.start()
    try:
        [address, *_] = await client.call("addresses", ANSWER_SECONDS)
        yield Victim(client, events, log, address)
    finally:
        await client.close()
