"""Our DHT node on top of hivemind's: holders of records, contacts, and bounds of readings."""

import asyncio
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.dht.process import MAX_LINE_BYTES, message_line
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import MAX_RECORD_BYTES
from tests.manual_clock import ManualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from hivemind.dht.routing import DHTID
    from hivemind.utils import MSGPackSerializer, ValueWithExpiration

    from atom.swarm.dht import node as dht_node
    from atom.swarm.dht.node import DhtNode, with_contact
    from atom.swarm.dht.storage import MAX_RECORDS_PER_READING, BoundedStorage, RecordGate

ADA, BOB = (Identity.create().peer_id for _ in range(2))
ENDS = 9e9


class Neighbours:
    """Stand-in for hivemind's node: searches, calls to other nodes, a list of silent nodes."""

    def __init__(self) -> None:
        self.protocol = self.blacklist = self
        self.storage = BoundedStorage(RecordGate())
        self.nearest, self.silent, self.searches = list("abcdefg"), "", 0
        self.stored: list[tuple[str, str]] = []
        self.asked = 0
        self.readers_asked: list[str] = []
        self.answers: dict[str, list[tuple[str, bytes]]] = {}
        self.thawed, self.clock = asyncio.Event(), ManualClock(50.0)
        self.found: Sequence[str] = ()

    def register_failure(self, peer: str) -> None:
        self.nearest.remove(peer)

    async def shutdown(self) -> None: ...

    async def find_nearest_nodes(
        self, key_ids: Sequence[Any], k_nearest: int, beam_size: int, exclude_self: bool
    ) -> dict[Any, dict[str, str]]:
        self.searches += 1
        assert exclude_self
        assert beam_size >= k_nearest
        return {key_id: {peer: peer for peer in self.nearest[:k_nearest]} for key_id in key_ids}

    async def call_store(
        self, peer: str, keys: object, values: object, expires_at: float, subkeys: Sequence[str]
    ) -> list[bool] | None:
        if peer in self.silent:
            await self.thawed.wait()
            return None
        self.stored.append((peer, subkeys[0]))
        return [True]

    async def _call_find_with_blacklist(self, peer: str, keys: Sequence[Any]) -> Any:
        self.readers_asked.append(peer)
        if peer in self.silent:
            await self.thawed.wait()
        if peer not in self.answers:
            return None
        items = {
            name: (MSGPackSerializer.dumps(record), ENDS) for name, record in self.answers[peer]
        }
        return {keys[0]: (ValueWithExpiration(items, ENDS), {})}

    async def get_many(self, keys: Sequence[str], beam_size: int, **_: object) -> dict[str, Any]:
        self.asked = beam_size
        value = dict.fromkeys(self.found, ValueWithExpiration(b"x", ENDS))
        search = asyncio.get_running_loop().create_future()
        if not self.silent:
            search.set_result(ValueWithExpiration(value, ENDS))
        return dict.fromkeys(keys, search)

    def holders(self, subkey: str) -> str:
        return "".join(sorted(peer for peer, stored in self.stored if stored == subkey))


@pytest.fixture
def neighbours() -> Neighbours:
    return Neighbours()


@pytest.fixture
def node(neighbours: Neighbours) -> DhtNode:
    node = DhtNode(NodeSettings(client_mode=True), Path(), neighbours.clock)
    node._node = node._p2p = neighbours
    return node


async def assert_closes(node: DhtNode) -> None:
    """Close the node, and assert that this interrupts its requests in progress."""
    await node.close()
    assert len(asyncio.all_tasks()) == 1


async def store(node: DhtNode, subkey: str, key: str = "key") -> None:
    await node.store(key, subkey, b"record", 60.0)


async def test_one_search_serves_many_records(neighbours: Neighbours, node: DhtNode) -> None:
    for subkey in "123":
        await store(node, subkey)
        assert neighbours.holders(subkey) == "abcde"
    assert neighbours.searches == 1
    neighbours.clock.advance(dht_node.HOLDERS_SECONDS)
    neighbours.nearest.insert(0, "x")
    await store(node, "4")
    assert (neighbours.searches, neighbours.holders("4")) == (2, "abcdx")
    await store(node, "4", "other key")
    assert neighbours.searches == 3


async def test_a_silent_node_holds_nobody_up_and_is_replaced(
    neighbours: Neighbours, node: DhtNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dht_node, "ENOUGH_SECONDS", 0.01)
    neighbours.silent = "b"
    await store(node, "1")
    assert (neighbours.searches, neighbours.holders("1")) == (1, "acde")
    neighbours.thawed.set()  # its time is over
    await asyncio.gather(*node._gifts)
    neighbours.thawed.clear()
    await store(node, "2")
    assert (neighbours.searches, neighbours.holders("2")) == (2, "acdef")
    neighbours.silent = "c"
    await store(node, "3")
    await assert_closes(node)


async def test_of_all_that_is_found_a_few_go_on_the_known_first(
    neighbours: Neighbours, node: DhtNode
) -> None:
    """Identities are free: a stranger stores as many leases as it likes."""
    neighbours.found = [*(f"stranger {number}" for number in range(2000)), "ada"]
    found, complete = await node.fetch("key", 1.0, known=["ada"])
    assert complete
    assert neighbours.asked < 10
    await node.fetch("key", 1.0, widely=True)
    assert neighbours.asked > 50
    assert found[0] == ("ada", b"x")
    assert len(found) == MAX_RECORDS_PER_READING
    closed, _ = await node.fetch("key", 1.0, known=["ada"], only_known=True)
    assert closed == [("ada", b"x")], "peers that were stored before we knew of the list"


async def test_a_search_that_does_not_end_is_answered_from_what_is_at_hand(
    neighbours: Neighbours, node: DhtNode
) -> None:
    """A node that holds the record may just have died."""
    neighbours.found = ["ada"]
    await node.fetch("key", 1.0)
    neighbours.silent = "a"
    stored, key_id = MSGPackSerializer.dumps(b"news"), DHTID.generate("key")
    neighbours.storage.store_subkey(key_id, "bob", stored, ENDS)
    found, complete = await node.fetch("key", 0.01)
    assert not complete
    assert dict(found) == {"ada": b"x", "bob": b"news"}
    assert await node.fetch("other key", 0.01) == ([], False)
    await assert_closes(node)


def test_whatever_is_found_goes_into_one_message() -> None:
    crowd = [(f"{n:052}", bytes(MAX_RECORD_BYTES)) for n in range(MAX_RECORDS_PER_READING)]
    assert len(message_line({"id": 1, "answer": (crowd, True)})) < MAX_LINE_BYTES


def at(port: int, peer_id: str) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"


@pytest.mark.parametrize(
    ("before", "met", "after"),
    [
        # The third start forgets the first: its ports are the system's choice each time.
        ((at(1, ADA), at(1, BOB)), at(2, ADA), (at(2, ADA), at(1, ADA), at(1, BOB))),
        ((at(2, ADA), at(1, ADA)), at(3, ADA), (at(3, ADA), at(2, ADA))),
        ((at(2, ADA), at(1, ADA)), at(1, ADA), (at(1, ADA), at(2, ADA))),
        ((at(1, ADA), at(2, BOB)), at(2, BOB), (at(1, ADA), at(2, BOB))),  # as before
    ],
)
def test_who_came_back_on_another_port_is_found_there(
    before: Sequence[str], met: str, after: Sequence[str]
) -> None:
    assert with_contact(before, met.rpartition("/")[2], [met]) == after
    assert with_contact(before, ADA, []) == before


async def test_readings_are_spread_over_the_holders_one_at_a_time(
    neighbours: Neighbours, node: DhtNode
) -> None:
    neighbours.answers = {peer: [("ada", b"x"), ("bob", b"y")] for peer in "abcde"}
    for _ in range(50):
        found, complete = await node.fetch("key", 1.0, known=["ada"])
        assert complete
        assert dict(found) == {"ada": b"x", "bob": b"y"}
    assert Counter(neighbours.readers_asked) == dict.fromkeys("abcde", 10)
    assert neighbours.asked == 0, "no reading asked all holders"


@pytest.mark.parametrize("hidden", [[], [("bob", b"y")]])
async def test_an_answer_without_the_record_that_is_due_is_not_believed(
    neighbours: Neighbours, node: DhtNode, hidden: list[tuple[str, bytes]]
) -> None:
    neighbours.found = ["ada"]
    neighbours.answers = dict.fromkeys("abcde", hidden)
    found, complete = await node.fetch("key", 1.0, known=["ada"])
    assert complete
    assert neighbours.asked > 5, "all holders were asked"
    assert dict(found) == {"ada": b"x"}


async def test_a_silent_holder_delays_a_reading_by_half_its_time(
    neighbours: Neighbours, node: DhtNode
) -> None:
    neighbours.answers = {"b": [("ada", b"x")]}
    await node._holders_of(DHTID.generate("key"))
    neighbours.silent = "acdefg"
    for _ in range(5):
        await node.fetch("key", 0.02, known=["ada"])
    assert sorted(neighbours.readers_asked) == list("abcde")
    found, _ = await node.fetch("key", 0.02, known=["ada"])
    assert dict(found) == {"ada": b"x"}, "as it was read last"
