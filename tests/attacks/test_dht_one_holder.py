"""Attack: a node beside the lease key that hides leases."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dht_stock import stock_node

from atom.swarm.dht.directory import open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import lease_key
from tests.attacks.dht_attacker import DHTID, KEY_BYTES, attacker_of, dht_pb2
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(180)
RUN = "run"
ANNA, BERT = (Identity.create() for _ in range(2))


def test_a_node_beside_the_key_that_says_nothing_is_there_hides_no_lease(tmp_path: Path) -> None:
    """Real nodes: a stock node is among the holders and carries the leases."""
    key = DHTID.generate(lease_key(RUN, ANNA.peer_id))
    near = dht_pb2.NodeInfo(node_id=(key ^ 2).to_bytes(KEY_BYTES, "big"))
    asked = Counter[str]()

    def nothing(request: bytes) -> bytes:
        asked["find"] += 1
        count = len(dht_pb2.FindRequest.FromString(request).keys)
        results = [dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)] * count
        return bytes(dht_pb2.FindResponse(results=results, peer=near).SerializeToString())

    def stored(_: bytes) -> bytes:
        asked["store"] += 1
        return bytes(dht_pb2.StoreResponse(store_ok=[True], peer=near).SerializeToString())

    def pong(_: bytes) -> bytes:
        return bytes(dht_pb2.PingResponse(peer=near, dht_time=time.time()).SerializeToString())

    async def peer(identity: Identity, entrance: str) -> Any:
        path = tmp_path / identity.peer_id
        identity.save(path)
        settings = NodeSettings(str(path), initial_peers=(entrance,))
        return await open_directory(RUN, ANNA.peer_id, settings)

    async def check(entrance: str) -> None:
        anna, bert = await peer(ANNA, entrance), await peer(BERT, entrance)
        [address, *_] = await anna._records.addresses()
        try:
            async with attacker_of(address) as attacker:
                answers = (("rpc_find", nothing), ("rpc_store", stored), ("rpc_ping", pong))
                for method, respond in answers:
                    await attacker.answer(method, respond)
                await attacker.send("rpc_ping", dht_pb2.PingRequest(peer=near).SerializeToString())
                for each, identity in ((anna, ANNA), (bert, BERT)):
                    await each.store_lease(each.sign_lease(a_lease(identity.peer_id)))
                for _ in range(10):
                    assert set(await anna.read_leases()) == {ANNA.peer_id, BERT.peer_id}
                assert asked["find"] > 0
        finally:
            await anna.close()
            await bert.close()

    with stock_node() as entrance:
        asyncio.run(check(entrance))
