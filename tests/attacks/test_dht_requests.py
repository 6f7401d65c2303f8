"""Attacks by requests and answers on one DHT node: nested, repeated, noisy, half open or many.

Each attacker has a host and an allowance of its own; the same node has to outlive all of them.
"""

import asyncio
import contextlib
import secrets
import time
from pathlib import Path

import psutil
import pytest

from atom.swarm import schema
from atom.swarm.dht.p2pd import MAX_MESSAGE_BYTES, MAX_NODE_BYTES, MAX_P2PD_DATA_BYTES
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import (
    LEASE_DOMAIN,
    LeaseBody,
    SignedRecord,
    encode_lease,
    lease_key,
)
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
RECORDS, CROWDED = 500, 12
CHECKS_AT_ONCE, CHECKS_PER_S = 2_500, 500
"""Bound on signatures that strangers at one host have checked."""
IDS, PINGS = 6, 100
PING = bytes(dht_pb2.PingRequest().SerializeToString())
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
    result = dht_pb2.FindResult(
        type=dht_pb2.FOUND_DICTIONARY,
        value=nested_tuples(DEPTH),
        expiration_time=time.time() + 10,
    )
    asked = await attacker.lie_beside(KEY, lambda _: [result])
    records, _ = await victim.fetch(KEY)
    assert asked["rpc_find"]
    assert records == []


async def publish_lease(victim: Victim, *known: str) -> None:
    """Let the victim store a lease of a new peer, in a run that knows these peers."""
    peer, expires_at = Identity.create(), time.time() + 19.0
    record = encode_lease(a_lease(peer.peer_id), "run", OWNER.peer_id, peer, expires_at)
    place = {"key": KEY, "subkey": peer.peer_id, "expires_at": expires_at, "known": known}
    await victim.client.call("store", 10.0, record=record, **place)


async def name_one_key_often(victim: Victim, attacker: Attacker) -> None:
    """hivemind would build 90,000 answers to one request of 2 MB."""
    for _ in range(LEASES):
        await publish_lease(victim)

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


def crowded_request() -> bytes:
    """Return a request to store a dictionary of unsigned records under their right key.

    A check of a signature takes 0.3 ms of the only thread that answers.
    """
    owner, ends = Identity.create().peer_id, time.time() + 19.0
    items = []
    for _ in range(RECORDS):
        author = Identity.create().peer_id
        body = schema.encode(LeaseBody("run", owner, ends, a_lease(author)))
        record = schema.encode(SignedRecord(LEASE_DOMAIN, body, secrets.token_bytes(64)))
        items.append([author, msgpack.packb(record), ends])
    dictionary = msgpack.packb([float(RECORDS), ends, items])
    request = dht_pb2.StoreRequest(
        keys=[DHTID.generate(lease_key("run", owner)).to_bytes()],
        subkeys=[b""],
        values=[msgpack.packb(msgpack.ExtType(0x50, dictionary))],
        expiration_time=[ends],
        in_cache=[False],
    )
    return bytes(request.SerializeToString())


async def let_signatures_be_checked(victim: Victim, attacker: Attacker) -> None:
    """A host has few signatures checked, whatever number of records its requests have."""
    requests = [crowded_request() for _ in range(CROWDED)]
    began = time.monotonic()
    answers = await asyncio.gather(
        *(attacker.send("rpc_store", each) for each in requests), return_exceptions=True
    )
    took_s = time.monotonic() - began
    refused = [each for each in answers if isinstance(each, REFUSED)]
    assert all("busy" in str(each) for each in refused)
    checked = RECORDS * (len(answers) - len(refused))
    assert 0 < checked <= CHECKS_AT_ONCE + CHECKS_PER_S * took_s


ATTACKS = (
    let_signatures_be_checked,
    request_nested_tuples,
    answer_with_nested_tuples,
    name_one_key_often,
    fill_the_log,
    announce_messages_without_end,
)


async def pings_answered(attackers: list[Attacker]) -> int:
    """Return the number of requests that are answered; all others are refused as too many."""
    requests = [each.send("rpc_ping", PING) for each in attackers for _ in range(PINGS)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, REFUSED)]
    assert all("busy" in str(each) for each in refused)
    return len(answers) - len(refused)


async def send_under_many_ids(victim: Victim, stack: contextlib.AsyncExitStack) -> None:
    """Libp2p ids cost nothing: those of one host get no more than one, and delay no other host."""
    from atom.swarm.dht import guard  # imports hivemind, which the attacker has done quietly

    *attackers, known = [
        await stack.enter_async_context(attacker_of(victim.address)) for _ in range(IDS + 1)
    ]
    newcomer = await stack.enter_async_context(attacker_of(victim.address, "127.0.0.99"))
    await publish_lease(victim, known.peer_id)
    began = time.monotonic()
    count = await pings_answered(attackers)
    took_s = time.monotonic() - began
    assert count < IDS * PINGS
    assert count <= guard.UNITS_AT_ONCE + 1 + guard.UNITS_PER_SECOND * took_s
    flood = asyncio.create_task(pings_answered(attackers))
    for other in (known, newcomer):
        for _ in range(20):
            assert await other.send("rpc_ping", PING)
    await flood
    async with asyncio.timeout(30.0):  # the allowance of this host grows again
        while not await pings_answered(attackers[:1]):
            pass


async def test_no_requests_or_answers_harm_a_node(tmp_path: Path) -> None:
    async with victim_in(tmp_path) as victim, contextlib.AsyncExitStack() as stack:
        assert_both_processes_are_limited_and_killed_first(victim)
        for number, attack in enumerate(ATTACKS, 2):
            async with attacker_of(victim.address, f"127.0.0.{number}") as attacker:
                await attack(victim, attacker)
                await victim.assert_unharmed()
        await send_under_many_ids(victim, stack)
        await victim.assert_unharmed()
