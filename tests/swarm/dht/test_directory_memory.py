import asyncio

import pytest
from swarm_samples import a_lease, a_manifest

from atom.base.errors import AddressError
from atom.swarm.dht import directory as directory_module
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory
from atom.swarm.identity import Identity
from atom.swarm.records.codec import encode_manifest
from atom.swarm.records.lease import LEASE_SECONDS
from tests.manual_clock import ManualClock
from tests.swarm.directory_memory import MemoryDht, MemoryDirectory

OWNER, PEER = Identity.create(), Identity.create()
RUN = "shakespeare"


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def dht(clock):
    return MemoryDht(clock)


def test_two_peers_and_an_onlooker_see_the_same_until_the_leases_end(dht, clock):
    async def check():
        owner = MemoryDirectory(dht, RUN, OWNER.peer_id, OWNER)
        peer = MemoryDirectory(dht, RUN, None, PEER)
        onlooker: Directory = MemoryDirectory(dht, RUN, None)
        manifest = a_manifest(OWNER)
        await owner.publish_manifest(encode_manifest(manifest, OWNER))
        assert (await peer.read_manifest())[0] == manifest
        assert peer.owner == OWNER.peer_id
        leases = {each.peer_id: a_lease(each.peer_id) for each in (OWNER, PEER)}
        await owner.publish_lease(leases[OWNER.peer_id])
        clock.advance(1.0)
        await peer.publish_lease(leases[PEER.peer_id])
        assert await owner.read_leases() == await onlooker.read_leases() == leases
        clock.advance(LEASE_SECONDS - 0.5)
        assert set(await onlooker.read_leases()) == {PEER.peer_id}
        clock.advance(1.0)
        assert await onlooker.read_leases() == {}
        assert await onlooker.read_manifest()
        await peer.close()

    asyncio.run(check())


def test_a_directory_that_cannot_be_reached_says_so_and_never_that_nobody_is_there(dht):
    async def check():
        directory = MemoryDirectory(dht, RUN, OWNER.peer_id, OWNER)
        directory.is_reachable = False
        for call in (directory.read_leases, directory.read_manifest):
            with pytest.raises(DirectoryUnavailable):
                await call()
        with pytest.raises(DirectoryUnavailable):
            await directory.publish_lease(a_lease(OWNER.peer_id))

    asyncio.run(check())


def test_a_record_seen_last_time_is_not_read_again(dht, clock, monkeypatch):
    async def check():
        directory = MemoryDirectory(dht, RUN, OWNER.peer_id, OWNER)
        read = []
        whole = directory_module.decode_lease
        monkeypatch.setattr(
            directory_module, "decode_lease", lambda record: read.append(record) or whole(record)
        )
        for serial in (1, 2):
            clock.advance(1.0)
            await directory.publish_lease(a_lease(OWNER.peer_id, serial=serial))
            for _ in range(3):
                leases = await directory.read_leases()
                assert leases[OWNER.peer_id].serial == serial == len(read)

    asyncio.run(check())


def test_a_run_nobody_knows_and_a_name_two_owners_use(dht):
    async def check():
        onlooker = MemoryDirectory(dht, RUN, None)
        with pytest.raises(AddressError, match="no run named 'shakespeare'"):
            await onlooker.read_manifest()
        for owner in (OWNER, PEER):
            directory = MemoryDirectory(dht, RUN, owner.peer_id, owner)
            await directory.publish_manifest(encode_manifest(a_manifest(owner), owner))
        with pytest.raises(AddressError) as caught:
            await onlooker.read_manifest()
        assert OWNER.peer_id in caught.value.message
        assert PEER.peer_id in caught.value.message
        named = MemoryDirectory(dht, RUN, PEER.peer_id)
        assert (await named.read_manifest())[0].owner == PEER.peer_id

    asyncio.run(check())
