"""Attacks on memory: the DHT process and p2pd are bounded, and the kernel ends them first."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from atom.swarm.dht import p2pd
from tests.attacks.dht_attacker import DHTID, KEY_BYTES, PeerID


def test_a_large_p2pd_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers who send much may end it; the trainer keeps its memory."""
    looks = iter([60 << 20, p2pd.MAX_P2PD_BYTES, p2pd.MAX_P2PD_BYTES + 1])
    child = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(looks)))
    process = SimpleNamespace(children=lambda: [child])
    monkeypatch.setattr(p2pd.psutil, "Process", lambda: process)
    monkeypatch.setattr(p2pd, "LOOK_AT_MEMORY_SECONDS", 0.0)
    asyncio.run(p2pd.until_p2pd_is_large())
    assert list(looks) == []


def test_few_debtors_are_remembered() -> None:
    from atom.swarm.dht import guard

    for number in range(guard.MAX_DEBTORS + 1):
        guard.allowance_of(str(number)).take(guard.UNITS_AT_ONCE, 0.0)
    assert guard.allowance_of.cache_info().currsize == guard.MAX_DEBTORS
    assert not guard.allowance_of(str(guard.MAX_DEBTORS)).allow(0.0)
    assert guard.allowance_of("0").allow(0.0), "the debtor that was quiet for the longest time"


def guarded_protocol() -> Any:
    """Return a protocol with an empty routing table, whose neighbours never answer a ping."""
    from hivemind.dht.routing import DHTID, RoutingTable
    from hivemind.dht.storage import DHTLocalStorage

    from atom.swarm.dht.guard import GuardedProtocol

    async def never_answers(_: PeerID) -> None: ...

    protocol = GuardedProtocol(_initialized_with_create=True)
    protocol.storage, protocol.client_mode = DHTLocalStorage(), True
    protocol.routing_table = RoutingTable(DHTID(1), 20, 5)
    protocol.call_ping = never_answers
    return protocol


async def test_a_peer_that_names_a_new_node_id_each_time_has_one_place() -> None:
    """And many peers have few: hivemind remembers every replacement of a full bucket."""
    protocol = guarded_protocol()
    table, liar = protocol.routing_table, PeerID(b"liar")
    for _ in range(500):
        await protocol.update_routing_table(DHTID.generate(), liar)
    assert len(table.uid_to_peer_id) == 1
    for number in range(5_000):
        top = 1 << (8 * KEY_BYTES - 1)  # one half of all ids: buckets that do not split
        crowd_id = DHTID(top | int.from_bytes(b"%d" % time.time_ns(), "big") % top)
        await protocol.update_routing_table(crowd_id, PeerID(b"peer %d" % number))
    replaced = sum(len(bucket.replacement_nodes) for bucket in table.buckets)
    assert replaced <= 20 * len(table.buckets)
    assert len(table.uid_to_peer_id) <= 40 * len(table.buckets) < 2_600


async def test_peers_that_name_the_same_node_id_have_one_place() -> None:
    protocol = guarded_protocol()
    for number in range(500):
        await protocol.update_routing_table(DHTID(7), PeerID(b"peer %d" % number))
    assert protocol.routing_table.peer_id_to_uid == {PeerID(b"peer 499"): DHTID(7)}


async def test_pinged_nodes_that_have_left_the_table_are_forgotten() -> None:
    protocol = guarded_protocol()
    table = protocol.routing_table
    for number in range(3_000):
        crowd_id = DHTID.generate()
        await protocol.update_routing_table(crowd_id, PeerID(b"peer %d" % number))
        bucket = table.buckets[table.get_bucket_index(crowd_id)]
        for pinged in bucket.nodes_requested_for_ping & bucket.nodes_to_peer_id.keys():
            silent = bucket.nodes_to_peer_id[pinged]
            await protocol.update_routing_table(None, silent, responded=False)
    pinged = sum(len(bucket.nodes_requested_for_ping) for bucket in table.buckets)
    assert 0 < pinged <= len(table.buckets)
