"""Directories on real DHT nodes: a stock bootstrap, peers, onlookers."""

import asyncio
import contextlib
import itertools
import time
import warnings
from pathlib import Path

import psutil
import pytest
from dht_stock import crowd_nearer_than_the_holder, stock_node, wait_until_gone
from swarm_samples import TINY_RUN, a_lease, a_manifest

from atom.base.errors import AddressError
from atom.base.events import EventList
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.dht import directory as directory_module
from atom.swarm.dht.directory import open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.codec import (
    encode_lease,
    encode_manifest,
    index_key,
    lease_key,
    manifest_key,
)
from atom.swarm.records.lease import PeerState

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from atom.swarm.dht.storage import MAX_RECORDS_PER_READING, MAX_STRANGERS_PER_KEY

pytestmark = pytest.mark.timeout(180)
RUN = "shakespeare"
CROWD = 300


class Peers:
    """Opens directories and closes them all; each peer's identity is a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._open.aclose()

    def identity(self, name):
        return Identity.load_or_create(self._folder / name)

    async def open(self, name, owner, run=RUN, events=None, **settings):
        path = None if name is None else str(self._folder / name)
        node = NodeSettings(path, redial_seconds=0.5, **settings)
        opened = await open_directory(run, owner, node, events)
        self._open.push_async_callback(opened.close)
        return opened


async def until(ask, good, timeout_s=30.0):
    """Asks again and again, for there is no event to wait for on a DHT."""
    async with asyncio.timeout(timeout_s):
        while not good(answer := await ask()):
            await asyncio.sleep(0.1)
        return answer


def test_peers_meet_on_a_stock_bootstrap_node_and_an_onlooker_sees_them(tmp_path):
    async def check(bootstrap):
        async with Peers(tmp_path) as peers:
            anna, bert = peers.identity("anna"), peers.identity("bert")
            events = EventList()
            a = await peers.open("anna", anna.peer_id, initial_peers=(bootstrap,), events=events)
            manifest = a_manifest(anna)
            record = encode_manifest(manifest, anna)
            await a.publish_manifest(record)
            b = await peers.open("bert", None, initial_peers=(bootstrap,))
            assert await b.read_manifest() == (manifest, record)
            await b.publish_manifest(record)

            onlooker = await peers.open(None, None, initial_peers=(bootstrap,), client_mode=True)
            first = a_lease(anna.peer_id), a_lease(bert.peer_id, serial=7)
            await a.publish_lease(first[0])
            await b.publish_lease(first[1])
            expected = {lease.peer_id: lease for lease in first}
            for directory in (a, b, onlooker):
                assert await directory.read_leases() == expected

            left = a_lease(bert.peer_id, serial=8, state=PeerState.LEFT)
            await b.publish_lease(left)
            leases = await onlooker.read_leases()
            assert leases[bert.peer_id] == left

            [address] = await a.visible_addresses()
            assert address.endswith(anna.peer_id)

            monkeypatched = pytest.MonkeyPatch()
            with monkeypatched.context() as patch:
                patch.setattr(directory_module, "MANIFEST_SECONDS", 0.5)
                onlooker.run, onlooker.owner = "unknown", None
                with pytest.raises(AddressError, match="no run named 'unknown'"):
                    await onlooker.read_leases()
            assert events.events == []
            pids = [each._client.process_id for each in (a, b, onlooker)]
            family = [p.pid for pid in pids for p in psutil.Process(pid).children()]
        assert wait_until_gone([*pids, *family]) == []

    with stock_node() as bootstrap:
        asyncio.run(check(bootstrap))


@pytest.mark.parametrize("is_owner_known", [True, False])
def test_a_run_is_found_though_many_nodes_came_nearer_to_its_key_since(tmp_path, is_owner_known):
    async def check(bootstrap):
        async with Peers(tmp_path) as peers:
            owner = anna.peer_id if is_owner_known else None
            newcomer = await peers.open("bert", owner, initial_peers=(bootstrap,))
            assert await newcomer.read_manifest() == (manifest, record)

    anna = Peers(tmp_path).identity("anna")
    manifest = a_manifest(anna)
    record = encode_manifest(manifest, anna)
    key = manifest_key(RUN, anna.peer_id) if is_owner_known else index_key(RUN)
    with crowd_nearer_than_the_holder(key, anna.peer_id, record, nearer=10) as bootstrap:
        asyncio.run(check(bootstrap))


def test_a_crowd_hides_neither_who_is_known_nor_who_comes(tmp_path):
    async def check():
        async with Peers(tmp_path) as peers:
            anna, bert, cleo = (peers.identity(name) for name in ("anna", "bert", "cleo"))
            a = await peers.open("anna", anna.peer_id)
            await a.publish_manifest(encode_manifest(a_manifest(anna), anna))
            entrance = await a.visible_addresses()
            stranger = await peers.open(None, None, initial_peers=entrance, client_mode=True)
            names = [Identity.create() for _ in range(CROWD)]
            for each in names:
                await store_as(stranger, each, anna)
            crowd = asyncio.create_task(renewed(stranger, names, anna))

            a.known = frozenset({cleo.peer_id})  # a voter that comes back
            b, c = [await peers.open(n, None, initial_peers=entrance) for n in ("bert", "cleo")]
            for each in (b, c):
                await each.read_manifest()
            await c.publish_lease(a_lease(cleo.peer_id))
            serials, seen = itertools.count(2), 0
            async with asyncio.timeout(60.0):
                while seen < 5:
                    await c.publish_lease(a_lease(cleo.peer_id, serial=next(serials)))
                    await b.publish_lease(a_lease(bert.peer_id, serial=next(serials)))
                    leases = await a.read_leases()
                    assert cleo.peer_id in leases
                    assert MAX_STRANGERS_PER_KEY <= len(leases) <= MAX_RECORDS_PER_READING
                    seen += bert.peer_id in leases
            crowd.cancel()

    asyncio.run(check())


def test_a_crowd_is_nothing_to_the_peers_of_a_closed_run(tmp_path):
    async def check():
        async with Peers(tmp_path) as peers:
            anna, bert = peers.identity("anna"), peers.identity("bert")
            run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = ['{bert.peer_id}']\n")
            manifest = a_manifest(anna, run_file=normalised_run_text(run))
            a = await peers.open("anna", anna.peer_id)
            await a.publish_manifest(encode_manifest(manifest, anna))
            entrance = await a.visible_addresses()
            stranger = await peers.open(None, None, initial_peers=entrance, client_mode=True)
            await a.publish_lease(a_lease(anna.peer_id))
            names = [Identity.create() for _ in range(CROWD)]
            for each in names:
                await store_as(stranger, each, anna)
            b = await peers.open("bert", None, initial_peers=entrance)
            await b.read_manifest()
            await b.publish_lease(a_lease(bert.peer_id))
            both = {anna.peer_id, bert.peer_id}
            stranger.owner = anna.peer_id
            for each in (a, b, stranger):
                assert set(await each.read_leases()) == both

    asyncio.run(check())


async def renewed(directory, names, owner):
    for who in itertools.cycle(names):
        await store_as(directory, who, owner)


async def store_as(directory, who, owner):
    expires_at = time.time() + 19.0
    record = encode_lease(a_lease(who.peer_id), RUN, owner.peer_id, who, expires_at)
    await directory._store(lease_key(RUN, owner.peer_id), who.peer_id, record, expires_at)


def test_a_run_outlives_its_founder_who_finds_it_again(tmp_path):
    async def check():
        async with Peers(tmp_path) as peers:
            anna, bert = peers.identity("anna"), peers.identity("bert")
            a = await peers.open("anna", anna.peer_id)
            record = encode_manifest(a_manifest(anna), anna)
            await a.publish_manifest(record)
            entrance = await a.visible_addresses()
            b = await peers.open("bert", anna.peer_id, initial_peers=entrance)
            await b.read_manifest()
            await b.publish_manifest(record)
            await a.close()

            through_b = await b.visible_addresses()
            late = await peers.open(None, None, initial_peers=through_b, client_mode=True)
            assert (await late.read_manifest())[1] == record
            await b.publish_lease(a_lease(bert.peer_id))
            assert set(await late.read_leases()) == {bert.peer_id}

            # The founder is back where it was, and knows nobody: the others call it.
            listen = "127.0.0.1:" + entrance[0].split("/")[4]
            again = await peers.open("anna", anna.peer_id, listen=listen)
            assert (await again.read_manifest())[1] == record
            await b.publish_lease(a_lease(bert.peer_id, serial=2))
            leases = await until(again.read_leases, lambda found: bert.peer_id in found)
            assert leases[bert.peer_id].serial == 2

    asyncio.run(check())
