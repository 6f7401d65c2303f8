"""Stand-in for libp2p's daemon: it gives a DHT process the requests and answers of many peers.

The daemon carries at most 2,200 requests per second. The stand-in has no network: it speaks the
daemon's protocol on a unix socket, and keeps many requests under way. Each peer that it shows has a
host of its own, and no peer sends more than its allowance admits.
"""

import asyncio
import contextlib
import ipaddress
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks.dht_attacker import Multiaddr, p2pd_pb2, read_pbmsg_safe, write_pbmsg
from tests.attacks.fuzz_wire import varint

ID_PREFIX = b"\x00\x24\x08\x01\x12\x20"
"""First bytes of a peer id that holds an Ed25519 key."""
PEERS_AT_ONCE = 64
REQUESTS_PER_PEER = 90
"""Requests of one peer, which cost up to 1.4 units each."""
UNDER_WAY = 256
"""Requests that are under way at the same time: the process answers them in a tenth of a second."""
AT_ONCE = 32
"""Requests of one write."""


@dataclass(frozen=True)
class Request:
    """Request of a peer to the process."""

    method: str
    raw: bytes
    values: int = 0
    """Values in well-formed fields, which the process gives to its decoder one after the other."""


class StandIn:
    """Daemon of one DHT process, which sends it requests and answers its calls.

    Args:
        respond: Returns the answer to a call of the process, from the method's name.
        answered: Called with each request and the process's response.
        draw: Makes the ids and the hosts of the peers.
    """

    def __init__(
        self,
        respond: Callable[[str], bytes],
        answered: Callable[[Request, Any], None],
        draw: random.Random,
    ) -> None:
        self._respond, self._answered, self._draw = respond, answered, draw
        self._peers = self._fresh_peers()
        self._room = asyncio.Semaphore(UNDER_WAY)
        self._under_way: dict[bytes, Request] = {}
        self._sent = 0
        self._process: asyncio.StreamWriter | None = None

    @contextlib.asynccontextmanager
    async def listening(self, socket: Path) -> AsyncIterator[None]:
        """Listen for the process on this socket."""
        async with await asyncio.start_unix_server(self._serve, socket):
            yield

    async def send(self, requests: Iterable[Request]) -> None:
        """Send requests in one write, once there is room for them."""
        assert self._process is not None
        frames = []
        for request in requests:
            await self._room.acquire()
            if self._sent % (PEERS_AT_ONCE * REQUESTS_PER_PEER) == 0:
                self._peers = self._fresh_peers()
            self._sent += 1
            call_id = self._sent.to_bytes(16, "big")
            self._under_way[call_id] = request
            call = p2pd_pb2.CallUnaryRequest(
                peer=self._peers[self._sent % PEERS_AT_ONCE].id,
                proto=f"DHTProtocol.{request.method}",
                data=request.raw,
            )
            frames.append(framed(callId=call_id, requestHandling=call))
        self._process.write(b"".join(frames))

    async def until_answered(self) -> None:
        """Return when no request is under way. Nothing can be sent from then on."""
        for _ in range(UNDER_WAY):
            await self._room.acquire()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = p2pd_pb2.Request()
        with contextlib.closing(writer), contextlib.suppress(EOFError, ConnectionError):
            await read_pbmsg_safe(reader, request)
            response = p2pd_pb2.Response(type=p2pd_pb2.Response.OK)
            if request.type == p2pd_pb2.Request.IDENTIFY:
                response.identify.id = ID_PREFIX + bytes(32)
                response.identify.addrs.append(Multiaddr("/ip4/127.0.0.1/tcp/1").to_bytes())
            elif request.type == p2pd_pb2.Request.LIST_PEERS:
                response.peers.extend(self._peers)
            await write_pbmsg(writer, response)
            if request.type == p2pd_pb2.Request.PERSISTENT_CONN_UPGRADE:
                self._process = writer
                while True:
                    message = p2pd_pb2.PersistentConnectionRequest()
                    await read_pbmsg_safe(reader, message)
                    self._take(message, writer)

    def _take(self, message: Any, writer: asyncio.StreamWriter) -> None:
        """Take one message of the process: a response, a call, or the start of a handler."""
        if message.HasField("unaryResponse"):
            self._room.release()
            self._answered(self._under_way.pop(message.callId), message.unaryResponse)
        elif message.HasField("callUnary"):
            answer = self._respond(message.callUnary.proto.removeprefix("DHTProtocol."))
            response = p2pd_pb2.CallUnaryResponse(response=answer)
            writer.write(framed(callId=message.callId, callUnaryResponse=response))
        elif not message.HasField("cancel"):
            writer.write(framed(callId=message.callId))

    def _fresh_peers(self) -> list[Any]:
        hosts = (ipaddress.IPv4Address(self._draw.randbytes(4)) for _ in range(PEERS_AT_ONCE))
        return [
            p2pd_pb2.PeerInfo(
                id=ID_PREFIX + self._draw.randbytes(32),
                addrs=[Multiaddr(f"/ip4/{host}/tcp/1").to_bytes()],
            )
            for host in hosts
        ]


def framed(**fields: Any) -> bytes:
    """Return a message to the process, with its length."""
    raw: bytes = p2pd_pb2.PersistentConnectionResponse(**fields).SerializeToString()
    return varint(len(raw)) + raw
