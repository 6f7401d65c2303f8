"""Swarms to look at, made by hand."""

import asyncio
from dataclasses import dataclass

from atom.cli.look.onlooker import Onlooker
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import Manifest, encode_manifest
from atom.swarm.records.view import SwarmView
from tests.cli.good_run import good_run
from tests.swarm.directory_memory import MemoryDht
from tests.swarm.swarm_samples import a_lease, a_manifest

RUN = good_run(rounds=30, global_sequences=64, micro_batch_sequences=8)
DIGEST = bytes(range(32))
USUAL = {
    "round": 7, "sequences_per_s": 12.5, "tokens_per_s": 100.0, "loss": 2.5, "state_digest": DIGEST,
}  # fmt: skip


class Village:
    """A run on an in-memory DHT, with peers that say what the test wants."""

    def __init__(self, peers: int = 2) -> None:
        self.dht = MemoryDht()
        self.identities = sorted(
            (Identity.create() for _ in range(peers)), key=lambda identity: identity.peer_id
        )
        self.owner = self.identities[0]

    def manifest(self) -> Manifest:
        run_file = normalised_run_text(parse_run_text(RUN))
        return a_manifest(self.owner, run="tiny", run_file=run_file)

    async def publish(self, **wishes: object) -> None:
        """Every peer's lease, and the manifest."""
        await self.publish_manifest()
        for number, identity in enumerate(self.identities):
            directory = self.dht.directory("tiny", self.owner.peer_id, identity)
            shown = USUAL | {"sequences": 10 + number} | wishes
            await directory.store_lease(directory.sign_lease(a_lease(identity.peer_id, **shown)))

    async def publish_manifest(self) -> None:
        directory = self.dht.directory("tiny", self.owner.peer_id, self.owner)
        await directory.publish_manifest(encode_manifest(self.manifest(), self.owner))

    async def onlooker(self) -> Onlooker:
        directory = self.dht.directory("tiny", self.owner.peer_id)
        manifest, _ = await directory.read_manifest()
        return Onlooker(directory, manifest)


@dataclass(frozen=True)
class Sight:
    view: SwarmView
    rounds: int | None


def sight(peers: int = 2, **wishes: object) -> Sight:
    """Return an onlooker's view of a village whose leases have these fields."""

    async def look() -> Sight:
        village = Village(peers)
        await village.publish(**wishes)
        onlooker = await village.onlooker()
        return Sight(await onlooker.view(), onlooker.rounds)

    return asyncio.run(look())
