"""Attack: nested MessagePack tuples: hivemind decodes recursively, so 1.5 kB end a process."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.attacks.dht_attacker import (
    DHTID,
    KEY_BYTES,
    REFUSED,
    attacker_of,
    dht_pb2,
    nested_tuples,
    store_request,
    victim_in,
)

pytestmark = pytest.mark.timeout(120)
DEPTH = 300
RUN_KEY = "atom/3/run/owner/lease"


def test_a_request_of_nested_tuples_is_refused_and_the_node_lives(tmp_path: Path) -> None:
    async def check() -> None:
        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            request = store_request(nested_tuples(DEPTH), time.time() + 10)
            assert len(request) < 1500
            for _ in range(3):
                with pytest.raises(REFUSED, match="malformed"):
                    await attacker.send("rpc_store", request)
            await victim.assert_unharmed()

    asyncio.run(check())


def test_an_answer_of_nested_tuples_is_ignored_and_the_reader_lives(tmp_path: Path) -> None:
    """A hostile node chooses an id beside the key, so every reader of the run asks it."""
    asked = asyncio.Event()

    async def check() -> None:
        key = DHTID.generate(RUN_KEY)
        near = dht_pb2.NodeInfo(node_id=(key ^ 2).to_bytes(KEY_BYTES, "big"))

        def found(_: bytes) -> bytes:
            asked.set()
            result = dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY,
                value=nested_tuples(DEPTH),
                expiration_time=time.time() + 10,
            )
            return dht_pb2.FindResponse(results=[result], peer=near).SerializeToString()

        def pong(_: bytes) -> bytes:
            return dht_pb2.PingResponse(peer=near, dht_time=time.time()).SerializeToString()

        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            await attacker.answer("rpc_find", found)
            await attacker.answer("rpc_ping", pong)
            ping = dht_pb2.PingRequest(peer=near).SerializeToString()
            await attacker.send("rpc_ping", ping)
            records, _ = await victim.fetch(RUN_KEY)
            assert asked.is_set()
            assert records == []
            await victim.assert_unharmed()

    asyncio.run(check())
