"""A peer whose optimizer's state is in parts, but for its rounds."""

from pathlib import Path

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Watch
from atom.training.kept_state import StateInParts
from atom.training.replica.replica import Replica
from atom.training.state_sync import FirstState, PeerDonors, StateSync
from atom.training.storage.disk import DiskRoom
from atom.training.storage.parts_results import PartsResults
from atom.training.storage.run_storage import Journal, RunStorage
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork
from tests.training.replicas_in_parts import EXACT
from tests.training.small_replica import FIRST_VALUE


class Peer:
    """A replica, its disk, and what it serves. It begins at the first state."""

    def __init__(
        self, replica: Replica, network: LocalNetwork, folder: Path, first: Head, me: Voter
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.replica, self.held, events = replica, replica.parts.held, EventList()
        live = lambda part: replica.parts.state(part)[0]  # noqa: E731
        self.results = PartsResults(folder / "results", self.held, EXACT, live)
        self.journal = Journal(folder / "chain.bin", first)
        room = DiskRoom(folder, events)
        self.storage = RunStorage(self.journal, self.results, folder / "snapshots", room, 2, {})
        door = network.add(BlobServer(self.storage.content).serve)
        self.peer_id, self.me = door.peer_id, me
        self.kept = StateInParts(replica, self.results, me)
        donors = PeerDonors(door, self.results.usual_bytes, 1 << 20, folder / "downloads", Watch())
        start = FirstState(state_digest(replica.state_arenas()), self._begin)
        self.sync = StateSync(me, replica, self.storage, donors, start, events)
        self.storage.begin()
        self.sync.restore()

    def _begin(self) -> bool:
        self.replica.initialise(FIRST_VALUE)
        return True
