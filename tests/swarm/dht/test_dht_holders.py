"""Records go to the nodes that were found to hold their key, until one of them keeps silent."""

import asyncio
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from atom.swarm.dht import node as dht_node
    from atom.swarm.dht.storage import BoundedStorage, RecordGate

from atom.swarm.dht.p2pd import NodeSettings
from tests.manual_clock import ManualClock

LOOPS = 20
"""Of the event loop: many more than whatever is due now needs."""


class Node:
    """What is used of hivemind's: a search, a call to one node, a list of the silent."""

    def __init__(self, peers):
        self.nearest, self.silent, self.searches = list(peers), set(), 0
        self.stored, self.asked = [], []
        self.protocol = self
        self.storage = BoundedStorage(RecordGate())
        self.blacklist = SimpleNamespace(register_failure=self.failed)
        self.failures = []
        self.thawed = asyncio.Event()

    def failed(self, peer):
        self.failures.append(peer)

    async def shutdown(self): ...

    async def find_nearest_nodes(self, key_ids, k_nearest, beam_size, exclude_self):
        self.searches += 1
        assert exclude_self
        assert beam_size >= k_nearest
        found = [peer for peer in self.nearest if peer not in self.failures][:k_nearest]
        return {key_id: {f"id of {peer}": peer for peer in found} for key_id in key_ids}

    async def call_store(self, peer, keys, values, expires_at, subkeys):
        self.asked.append(peer)
        if peer in self.silent:
            await self.thawed.wait()
            return None
        self.stored.append((peer, subkeys[0]))
        return [True]


@pytest.fixture
def clock():
    return ManualClock(50.0)


def play(clock, story, *, peers="abcdefg"):
    async def run():
        node = Node(peers)
        ours = dht_node.DhtNode(NodeSettings(client_mode=True), Path(), clock)
        ours._node, ours._p2p = node, node
        await story(node, ours)
        await ours.close()

    asyncio.run(run())


def test_one_search_serves_many_records(clock):
    async def story(node, ours):
        for number in range(4):
            await ours.store("key", f"{number}", b"record", 60.0)
        assert node.searches == 1
        assert set(node.stored) == {(peer, f"{n}") for n in range(4) for peer in "abcde"}
        clock.advance(dht_node.HOLDERS_SECONDS)
        node.nearest = ["x", *node.nearest]
        await ours.store("key", "5", b"record", 60.0)
        assert node.searches == 2
        assert {peer for peer, subkey in node.stored if subkey == "5"} == set("xabcd")
        await ours.store("other key", "5", b"record", 60.0)
        assert node.searches == 3

    play(clock, story)


def test_a_silent_node_holds_nobody_up_and_is_replaced(clock, monkeypatch):
    monkeypatch.setattr(dht_node, "ENOUGH_SECONDS", 0.01)

    async def story(node, ours):
        node.silent = {"b"}
        for number in range(3):
            await ours.store("key", f"{number}", b"record", 60.0)
        assert node.searches == 1
        assert {peer for peer, _ in node.stored} == set("acde")
        node.thawed.set()  # its time is over
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(node.failures) == {"b"}
        await ours.store("key", "3", b"record", 60.0)
        assert node.searches == 2
        assert {peer for peer, subkey in node.stored if subkey == "3"} == set("acdef")

    play(clock, story)


def test_closing_breaks_off_what_is_under_way(clock):
    async def story(node, ours):
        node.silent = {"b"}
        await ours.store("key", "1", b"record", 60.0)
        await ours.close()
        assert len(asyncio.all_tasks()) == 1

    play(clock, story)
