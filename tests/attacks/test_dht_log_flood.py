"""Attack: bytes that make hivemind write a line into the log, hundreds of thousands a message."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.attacks.dht_attacker import (
    REFUSED,
    attacker_of,
    dht_pb2,
    msgpack,
    store_request,
    victim_in,
)

pytestmark = pytest.mark.timeout(120)
UNKNOWN_EXTENSIONS = 100_000
MAX_LOG_BYTES = 4096


def test_refused_messages_leave_the_log_as_it_was(tmp_path: Path) -> None:
    async def check() -> None:
        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            before = victim.log.stat().st_size
            value = msgpack.packb([msgpack.ExtType(1, b"x")] * UNKNOWN_EXTENSIONS)
            with pytest.raises(REFUSED):
                await attacker.send("rpc_store", store_request(value, time.time() + 10))
            # A node id that is too long fails in a task of hivemind's own, which logs it.
            long_id = dht_pb2.NodeInfo(node_id=bytes(100))
            request = dht_pb2.FindRequest(keys=[bytes(20)], peer=long_id).SerializeToString()
            for _ in range(30):
                with pytest.raises(REFUSED):
                    await attacker.send("rpc_find", request)
            await victim.assert_unharmed()
            assert victim.log.stat().st_size - before < MAX_LOG_BYTES

    asyncio.run(check())
