"""A stock hivemind node reads the leases and the manifest that our nodes hold."""

import asyncio
import time
from pathlib import Path

import pytest
from swarm_samples import a_lease, a_manifest

from atom.swarm.dht.directory import open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import decode_lease, encode_manifest, lease_key, manifest_key
from tests.attacks.dht_attacker import attacker_of

pytestmark = pytest.mark.timeout(120)
ANNA = Identity.create()
RUN = "shakespeare"
MOST_SECONDS_OLD = 3.0


def test_a_stock_node_reads_counts_that_were_just_published(tmp_path: Path) -> None:
    from hivemind.dht import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.utils import MSGPackSerializer

    assert DHTProtocol.serializer is MSGPackSerializer, "the stock decoder is in use"
    path, manifest = tmp_path / "anna", encode_manifest(a_manifest(ANNA), ANNA)
    ANNA.save(path)

    async def check() -> None:
        ours = await open_directory(RUN, ANNA.peer_id, NodeSettings(str(path)))
        try:
            await ours.publish_manifest(manifest)
            [address, *_] = await ours._records.addresses()
            async with attacker_of(address) as host:
                stock = await DHTNode.create(
                    p2p=host._p2p, initial_peers=[address], client_mode=True
                )
                for serial in (1, 2):
                    lease = a_lease(ANNA.peer_id, serial=serial)
                    published_at = time.time()
                    await ours.store_lease(ours.sign_lease(lease))
                    found = await stock.get(lease_key(RUN, ANNA.peer_id), latest=True)
                    assert list(found.value) == [ANNA.peer_id]
                    assert decode_lease(found.value[ANNA.peer_id].value) == lease
                    assert found.expiration_time - 8.0 >= published_at - MOST_SECONDS_OLD
                found = await stock.get(manifest_key(RUN, ANNA.peer_id), latest=True)
                assert found.value[ANNA.peer_id].value == manifest
                await stock.shutdown()
        finally:
            await ours.close()

    asyncio.run(check())
