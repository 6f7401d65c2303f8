"""A snapshot's state, fetched by a replica from a peer that serves it."""

from pathlib import Path

from torch import Tensor

from atom.base.events import EventList
from atom.swarm.chain.commit import Head
from atom.swarm.identity import Identity
from atom.swarm.state.blobs import BlobServer, BlobStore
from atom.swarm.state.fetch import Watch
from atom.training.replica.replica import Replica
from atom.training.state_sync.donors import PeerDonors
from atom.training.storage.run_storage import Snapshot
from tests.swarm.local_transport import LocalNetwork, LocalTransport

HEAD = b"h" * 32


def fetched(snapshot: Snapshot, joiner: Replica, folder: Path) -> dict[str, Tensor]:
    """Of the snapshot at `HEAD`. Raises: PeerRefused."""
    network = LocalNetwork()
    store = BlobStore({f"state/{HEAD.hex()}": snapshot.load()}.get)
    me, donor = (
        LocalTransport(network, Identity.create(), bytes([n]) * 16, EventList()) for n in range(2)
    )
    donor.set_handlers(on_blobs=BlobServer(store).serve)
    for transport in (me, donor):
        transport.start()
    donors = PeerDonors(me, joiner.elements, joiner.state_form, folder, Watch())
    head = Head(HEAD, snapshot.round, 0, 0, (), ())
    try:
        return dict(donors.state(head, [donor.peer_id], snapshot.state_digest, None))
    finally:
        for transport in (me, donor):
            transport.close()
