"""Attacks by single requests and answers on one DHT node: nested, repeated, noisy or half open.

Each attacker has a host and an allowance of its own; the same node has to outlive all of them.
"""

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
import pytest

from atom.swarm.dht.p2pd import MAX_MESSAGE_BYTES, MAX_NODE_BYTES, MAX_P2PD_DATA_BYTES
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import encode_lease, lease_key
from tests.attacks.dht_attacker import (
    DHTID,
    KEY_BYTES,
    REFUSED,
    Attacker,
    Victim,
    attacker_of,
    dht_pb2,
    msgpack,
    nested_tuples,
    store_request,
    victim_in,
)
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(180)
OWNER = Identity.create()
KEY = lease_key("run", OWNER.peer_id)
DEPTH, REPEATS, LEASES, UNKNOWN_EXTENSIONS = 300, 90_000, 20, 100_000
MAX_GROWTH_BYTES, MAX_LOG_BYTES = 64 << 20, 4096
HALF_OPEN_STREAMS = 180
"""libp2p admits 64 of one peer for each protocol."""
METHODS = ("rpc_find", "rpc_store", "rpc_ping")


def assert_both_processes_are_limited_and_killed_first(victim: Victim) -> None:
    limits = (victim.node, MAX_NODE_BYTES), (victim.p2pd, MAX_P2PD_DATA_BYTES)
    for process, limit in limits:
        assert process.rlimit(psutil.RLIMIT_DATA)[0] == limit
        assert int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()) == 1000


async def request_nested_tuples(victim: Victim, attacker: Attacker) -> None:
    """hivemind decodes recursively: 1.5 kB would end the process."""
    request = store_request(nested_tuples(DEPTH), time.time() + 10)
    assert len(request) < 1500
    for _ in range(3):
        with pytest.raises(REFUSED, match="malformed"):
            await attacker.send("rpc_store", request)


async def answer_with_nested_tuples(victim: Victim, attacker: Attacker) -> None:
    """A hostile node chooses an id beside the key, so every reader of the run asks it."""
    asked = asyncio.Event()
    near = dht_pb2.NodeInfo(node_id=(DHTID.generate(KEY) ^ 2).to_bytes(KEY_BYTES, "big"))

    def found(_: bytes) -> bytes:
        asked.set()
        result = dht_pb2.FindResult(
            type=dht_pb2.FOUND_DICTIONARY,
            value=nested_tuples(DEPTH),
            expiration_time=time.time() + 10,
        )
        return bytes(dht_pb2.FindResponse(results=[result], peer=near).SerializeToString())

    def pong(_: bytes) -> bytes:
        return bytes(dht_pb2.PingResponse(peer=near, dht_time=time.time()).SerializeToString())

    await attacker.answer("rpc_find", found)
    await attacker.answer("rpc_ping", pong)
    await attacker.send("rpc_ping", dht_pb2.PingRequest(peer=near).SerializeToString())
    records, _ = await victim.fetch(KEY)
    assert asked.is_set()
    assert records == []


async def name_one_key_often(victim: Victim, attacker: Attacker) -> None:
    """hivemind would build 90,000 answers to one request of 2 MB."""
    expires_at = time.time() + 19.0
    for peer in (Identity.create() for _ in range(LEASES)):
        record = encode_lease(a_lease(peer.peer_id), "run", OWNER.peer_id, peer, expires_at)
        place = {"key": KEY, "subkey": peer.peer_id, "expires_at": expires_at}
        await victim.client.call("store", 10.0, record=record, **place)

    def find_request(keys: list[bytes]) -> bytes:
        return bytes(dht_pb2.FindRequest(keys=keys).SerializeToString())

    key = DHTID.generate(KEY).to_bytes()
    others = [number.to_bytes(KEY_BYTES, "big") for number in range(3)]
    answer = await attacker.send("rpc_find", find_request([key, *others]))
    results = dht_pb2.FindResponse.FromString(answer).results
    assert len(results) == 4
    assert len(results[0].value) > LEASES * 300
    for refused in ([key] * 2, [key, *others, bytes(19) + b"\xff"], [key] * REPEATS):
        with pytest.raises(REFUSED, match="malformed"):
            await attacker.send("rpc_find", find_request(refused))
    with pytest.raises(REFUSED, match="busy"):  # until the debt of the large request is paid
        await attacker.send("rpc_find", find_request([key]))
    assert victim.grown_bytes() < MAX_GROWTH_BYTES


async def fill_the_log(victim: Victim, attacker: Attacker) -> None:
    """Bytes that make hivemind write a line into the log, hundreds of thousands a message."""
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


async def announce_messages_without_end(victim: Victim, attacker: Attacker) -> None:
    """libp2p's daemon allocates a buffer for each, which a tight limit of memory would refuse."""
    async with contextlib.AsyncExitStack() as streams:
        for number in range(HALF_OPEN_STREAMS):
            method = METHODS[number % len(METHODS)]
            await attacker.announce(method, MAX_MESSAGE_BYTES - 100, streams)
        await victim.assert_unharmed()


ATTACKS = (
    request_nested_tuples,
    answer_with_nested_tuples,
    name_one_key_often,
    fill_the_log,
    announce_messages_without_end,
)


def test_no_single_request_or_answer_harms_a_node(tmp_path: Path) -> None:
    async def check() -> None:
        async with victim_in(tmp_path) as victim:
            assert_both_processes_are_limited_and_killed_first(victim)
            for number, attack in enumerate(ATTACKS, 2):
                async with attacker_of(victim.address, f"127.0.0.{number}") as attacker:
                    await attack(victim, attacker)
                    await victim.assert_unharmed()

    asyncio.run(check())
