"""Attack: a node beside the lease key that hides leases."""

from pathlib import Path

import pytest

from atom.swarm.dht.directory import Directory, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import lease_key
from tests.attacks.dht_attacker import attacker_of, dht_pb2
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(180)
RUN = "run"
ANNA, BERT = (Identity.create() for _ in range(2))


def nothing(request: bytes) -> list[object]:
    count = len(dht_pb2.FindRequest.FromString(request).keys)
    return [dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)] * count


async def test_a_node_beside_the_key_that_says_nothing_is_there_hides_no_lease(
    tmp_path: Path,
) -> None:
    async def peer(identity: Identity, *entrances: str) -> Directory:
        path = tmp_path / identity.peer_id
        identity.save(path)
        settings = NodeSettings(str(path), initial_peers=entrances)
        return await open_directory(RUN, ANNA.peer_id, settings)

    anna = await peer(ANNA)
    [address, *_] = await anna.visible_addresses()
    bert = await peer(BERT, address)
    try:
        async with attacker_of(address) as attacker:
            asked = await attacker.lie_beside(lease_key(RUN, ANNA.peer_id), nothing)
            for each, identity in ((anna, ANNA), (bert, BERT)):
                await each.store_lease(each.sign_lease(a_lease(identity.peer_id)))
            for _ in range(10):
                assert set(await anna.read_leases()) == {ANNA.peer_id, BERT.peer_id}
            assert asked["rpc_find"]
    finally:
        await anna.close()
        await bert.close()
