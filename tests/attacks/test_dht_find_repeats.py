"""Attack: one request of 2 MB that names one key 90,000 times. hivemind builds 90,000 answers."""

import asyncio
import time
from pathlib import Path

import pytest

from atom.swarm.identity import Identity
from atom.swarm.records.manifest import encode_lease, lease_key
from tests.attacks.dht_attacker import (
    DHTID,
    KEY_BYTES,
    REFUSED,
    Victim,
    attacker_of,
    dht_pb2,
    victim_in,
)
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(120)
OWNER = Identity.create()
KEY = lease_key("run", OWNER.peer_id)
REPEATS = 90_000
LEASES = 20
MAX_GROWTH_BYTES = 64 << 20


async def store_leases(victim: Victim) -> None:
    expires_at = time.time() + 19.0
    for _ in range(LEASES):
        peer = Identity.create()
        lease = a_lease(peer.peer_id)
        record = encode_lease(lease, "run", OWNER.peer_id, peer, expires_at)
        place = {"key": KEY, "subkey": peer.peer_id, "expires_at": expires_at}
        await victim.client.call("store", 10.0, record=record, **place)


def find_request(keys: list[bytes]) -> bytes:
    return bytes(dht_pb2.FindRequest(keys=keys).SerializeToString())


def test_a_key_is_answered_once_and_a_request_for_few_keys_only(tmp_path: Path) -> None:
    async def check() -> None:
        key = DHTID.generate(KEY).to_bytes()
        others = [number.to_bytes(KEY_BYTES, "big") for number in range(3)]
        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            await store_leases(victim)
            for refused in ([key] * REPEATS, [key] * 2, [key, *others, bytes(19) + b"\xff"]):
                with pytest.raises(REFUSED, match=r"malformed|busy"):
                    await attacker.send("rpc_find", find_request(refused))
            assert victim.grown_bytes() < MAX_GROWTH_BYTES
            async with asyncio.timeout(30.0):  # until the debt of the large request is paid
                while True:
                    try:
                        answer = await attacker.send("rpc_find", find_request([key, *others]))
                        break
                    except REFUSED:
                        await asyncio.sleep(0.1)
            results = dht_pb2.FindResponse.FromString(answer).results
            assert len(results) == 4
            assert len(results[0].value) > LEASES * 300
            await victim.assert_unharmed()

    asyncio.run(check())
