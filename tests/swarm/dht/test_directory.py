"""Directories on real DHT nodes, stock nodes among them; and their twin in memory."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from dht_stock import stock_node, wait_until_gone

from atom.base.errors import AddressError
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.dht import directory as directory_module
from atom.swarm.dht.directory import Directory, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.lease import LEASE_SECONDS, PeerState
from atom.swarm.records.manifest import (
    Manifest,
    decode_lease,
    encode_lease,
    encode_manifest,
    lease_key,
    manifest_key,
)
from tests.attacks.dht_attacker import attacker_of
from tests.swarm.directory_memory import MemoryDht
from tests.swarm.swarm_samples import TINY_RUN, a_lease, a_manifest

pytestmark = pytest.mark.timeout(180)
ANNA, BERT, CLEO = (Identity.create() for _ in range(3))
NOBODY = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.create().peer_id}"
RUN = "shakespeare"
MOST_SECONDS_OLD = 3.0
MANIFEST = a_manifest(ANNA)
RECORD = encode_manifest(MANIFEST, ANNA)

Open = Callable[..., Awaitable[Directory]]


def listed(member: Identity) -> Manifest:
    run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = ['{member.peer_id}']\n")
    return a_manifest(ANNA, run_file=normalised_run_text(run))


async def store_as(directory: Directory, who: Identity) -> None:
    expires_at = time.time() + 19.0
    record = encode_lease(a_lease(who.peer_id), RUN, ANNA.peer_id, who, expires_at)
    await directory._store(lease_key(RUN, ANNA.peer_id), who.peer_id, record, expires_at)


@contextlib.asynccontextmanager
async def real_peers(folder: Path, *entrances: str) -> AsyncIterator[Open]:
    """Opens directories, by default through these entrances; closes them all, and with them ends
    every process that they have started."""
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    async with contextlib.AsyncExitStack() as opened:

        async def open_one(
            identity: Identity | None = None,
            through: Sequence[str] = entrances,
            **settings: Any,
        ) -> Directory:
            path = None
            if identity is not None:
                path = str(folder / identity.peer_id)
                identity.save(Path(path))
            node = NodeSettings(path, initial_peers=through, client_mode=path is None, **settings)
            directory = await open_directory(RUN, ANNA.peer_id, node)
            opened.push_async_callback(directory.close)
            return directory

        yield open_one
        family = {each.pid for each in psutil.Process().children(recursive=True)} - before
    assert wait_until_gone(list(family)) == []


async def they_meet(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await open_one(ANNA)
    await a.publish_manifest(RECORD)
    b = await open_one(BERT)
    assert await b.read_manifest() == (MANIFEST, RECORD)
    await b.publish_manifest(RECORD)
    onlooker = await open_one(through=await b.visible_addresses())
    await onlooker.read_manifest()

    decoded, decode = [], directory_module.decode_lease
    monkeypatch.setattr(
        directory_module, "decode_lease", lambda raw: decoded.append(raw) or decode(raw)
    )
    leases = {each.peer_id: a_lease(each.peer_id) for each in (ANNA, BERT)}
    await a.store_lease(a.sign_lease(leases[ANNA.peer_id]))
    await b.store_lease(b.sign_lease(leases[BERT.peer_id]))
    for directory in (a, b, onlooker):
        assert await directory.read_leases() == leases
    left = a_lease(BERT.peer_id, serial=8, state=PeerState.LEFT)
    await b.store_lease(b.sign_lease(left))
    assert await onlooker.read_leases() == leases | {BERT.peer_id: left}
    assert len(decoded) == 3 * 2 + 1, "each reads each record once"

    monkeypatch.setattr(directory_module, "MANIFEST_SECONDS", 0.5)
    onlooker.run = "unknown"
    with pytest.raises(AddressError, match="no run named 'unknown'"):
        await onlooker.read_manifest()
    onlooker.run = RUN
    await store_as(onlooker, CLEO)
    assert CLEO.peer_id in await a.read_leases()
    await a.publish_manifest(encode_manifest(listed(BERT), ANNA))
    assert set(await a.read_leases()) == {ANNA.peer_id, BERT.peer_id}


async def test_peers_meet_on_a_stock_bootstrap_node_and_an_onlooker_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One living entrance is enough."""
    with stock_node() as bootstrap:
        async with real_peers(tmp_path, NOBODY, bootstrap) as open_one:
            await they_meet(open_one, monkeypatch)


async def test_peers_meet_in_memory_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    dht = MemoryDht()

    async def open_one(identity: Identity | None = None, through: object = ()) -> Directory:
        return dht.directory(RUN, ANNA.peer_id, identity)

    await they_meet(open_one, monkeypatch)
    namesake = dht.directory(RUN, CLEO.peer_id, CLEO)
    await namesake.publish_manifest(encode_manifest(a_manifest(CLEO), CLEO))
    assert (await namesake.read_manifest())[0].owner == CLEO.peer_id


async def test_the_dht_is_asked_widely_for_a_manifest_and_told_whose_leases_no_crowd_may_hide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A manifest is stored once a minute: many nodes may have come nearer to its key since."""
    monkeypatch.setattr(directory_module, "MANIFEST_RETRY_SECONDS", 0.0)
    dht = MemoryDht()
    await dht.directory(RUN, ANNA.peer_id, ANNA).publish_manifest(RECORD)
    dht.only_widely = True
    newcomer = dht.directory(RUN, ANNA.peer_id, BERT)
    newcomer.known = frozenset({CLEO.peer_id})
    assert await newcomer.read_manifest() == (MANIFEST, RECORD)
    await newcomer.read_leases()
    assert dht.told == ({each.peer_id for each in (ANNA, BERT, CLEO)}, False)


async def a_stock_node_reads(ours: Directory, who: Identity) -> None:
    """Assert that a stock hivemind node reads leases that were just published, and the manifest."""
    from hivemind.dht import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.utils import MSGPackSerializer

    assert DHTProtocol.serializer is MSGPackSerializer, "the stock decoder is in use"
    address = next(each for each in await ours.visible_addresses() if each.startswith("/ip4/"))
    async with attacker_of(address) as host:
        stock = await DHTNode.create(p2p=host._p2p, initial_peers=[address], client_mode=True)
        for serial in (1, 2):
            lease, published_at = a_lease(who.peer_id, serial=serial), time.time()
            await ours.store_lease(ours.sign_lease(lease))
            found = await stock.get(lease_key(RUN, ANNA.peer_id), latest=True)
            assert list(found.value) == [who.peer_id]
            assert decode_lease(found.value[who.peer_id].value) == lease
            assert found.expiration_time - LEASE_SECONDS >= published_at - MOST_SECONDS_OLD
        found = await stock.get(manifest_key(RUN, ANNA.peer_id), latest=True)
        assert found.value[ANNA.peer_id].value == RECORD
        await stock.shutdown()


async def test_a_run_outlives_its_founder_who_finds_it_again(tmp_path: Path) -> None:
    async with real_peers(tmp_path) as open_one:
        a = await open_one(ANNA)
        await a.publish_manifest(RECORD)
        entrance = await a.visible_addresses()
        assert entrance[0].endswith(ANNA.peer_id)
        b = await open_one(BERT, entrance, listen="[::]:0")
        visible = await b.visible_addresses()
        assert {each.split("/")[1] for each in visible} == {"ip4", "ip6"}
        assert len({each.split("/")[4] for each in visible}) == 1, "at one port"
        await b.read_manifest()
        await b.publish_manifest(RECORD)
        await a.close()
        await a_stock_node_reads(b, BERT)

        # The founder is back at its address, and knows no node: the other nodes dial it every
        # ten seconds, and a DHT has no event to wait for.
        listen = "127.0.0.1:" + entrance[0].split("/")[4]
        again = await open_one(ANNA, (), listen=listen)
        async with asyncio.timeout(30.0):
            for serial in itertools.count(3):
                await b.store_lease(b.sign_lease(a_lease(BERT.peer_id, serial=serial)))
                if BERT.peer_id in (leases := await again.read_leases()):
                    break
                await asyncio.sleep(0.05)
        assert (await again.read_manifest())[1] == RECORD
        assert leases[BERT.peer_id].serial >= 2
