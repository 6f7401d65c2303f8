"""Swarms to look at, made by hand."""

import asyncio

from atom.cli.look.onlooker import Onlooker, Sight
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest, PackageVersion, encode_manifest
from tests.cli.good_run import good_run
from tests.swarm.directory_memory import MemoryDht

RUN = good_run(rounds=30, global_sequences=64, micro_batch_sequences=8)
DIGEST = bytes(range(32))


class Village:
    """A run on an in-memory DHT, with peers that say what the test wants."""

    def __init__(self, peers: int = 2) -> None:
        self.dht = MemoryDht()
        self.identities = sorted(
            (Identity.create() for _ in range(peers)), key=lambda identity: identity.peer_id
        )
        self.owner = self.identities[0]

    def manifest(self) -> Manifest:
        return Manifest(
            run="tiny",
            owner=self.owner.peer_id,
            run_file=normalised_run_text(parse_run_text(RUN)),
            graph_hash="a" * 64,
            versions=(PackageVersion("torch", "2.9"),),
            data_digest="c" * 64,
            initial_state_digest=DIGEST,
            founder_incarnation=b"i" * 16,
        )

    async def publish(self, **wishes: object) -> None:
        """Every peer's lease, and the manifest."""
        await self.publish_manifest()
        for number, identity in enumerate(self.identities):
            directory = self.dht.directory("tiny", self.owner.peer_id, identity)
            await directory.publish_lease(lease(identity.peer_id, sequences=10 + number, **wishes))

    async def publish_manifest(self) -> None:
        directory = self.dht.directory("tiny", self.owner.peer_id, self.owner)
        await directory.publish_manifest(encode_manifest(self.manifest(), self.owner))

    async def onlooker(self) -> Onlooker:
        directory = self.dht.directory("tiny", self.owner.peer_id)
        manifest, _ = await directory.read_manifest()
        return Onlooker(directory, manifest)


def lease(peer_id: str, **wishes: object) -> Lease:
    fields: dict[str, object] = {
        "peer_id": peer_id,
        "incarnation": b"i" * 16,
        "serial": 1,
        "issued_at": 1_000.0,
        "state": PeerState.ACCUMULATING,
        "head": DIGEST,
        "round": 7,
        "sequences": 10,
        "sequences_per_s": 12.5,
        "tokens_per_s": 100.0,
        "pass_seconds": 0.5,
        "loss": 2.5,
        "state_digest": DIGEST,
        "addresses": ("127.0.0.1:4000",),
    }
    return Lease(**(fields | wishes))  # type: ignore[arg-type]


def sight(peers: int = 2, **wishes: object) -> Sight:
    """What an onlooker sees of a village whose leases have these fields."""

    async def look() -> Sight:
        village = Village(peers)
        await village.publish(**wishes)
        return await (await village.onlooker()).look()

    return asyncio.run(look())
