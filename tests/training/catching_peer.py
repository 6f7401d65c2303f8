"""A peer that catches up in tests, and donors that serve the data of a test."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.exchange.codec import EXACT
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer, Content, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.training.recovery import PeerDonors, Recovery
from atom.training.replica.replica import Replica
from atom.training.shared_state import FirstState, SharedState
from atom.training.storage.disk import DiskRoom
from atom.training.storage.results import Results
from atom.training.storage.run_storage import Journal, RunStorage, write_snapshot
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.trickle import Trickle
from tests.training.small_history import ROUNDS, initialise, new_replica, run

PAGE_COMMITS = 2
ME = Voter("me", bytes(16))


class Served(BlobServer):
    """Data of one donor, any of which a test may replace by a lie."""

    def __init__(
        self, offers: Sequence[int] = (), results: Sequence[int] = range(1, ROUNDS + 1)
    ) -> None:
        story = run()
        self.chain = story.chain()
        self.contents: dict[str, Content] = {
            f"result/{story.result_digest(number).hex()}": story.results[number].arenas
            for number in results
        }
        for number in offers:
            self.contents[state_name(number)] = story.states[number]
        self.offer(*offers)
        self.asked: list[str] = []
        """Names, each once in a row."""
        super().__init__(self.content_of)

    def offer(self, *rounds: int) -> None:
        heads = b"".join(run().heads[number].digest for number in rounds)
        self.contents["snapshots"] = plain_bytes(heads)

    def content_of(self, name: str) -> Content | None:
        self.asked += [name] * (self.asked[-1:] != [name])
        if not name.startswith("chain/"):
            return self.contents.get(name)
        start = end_of(self.chain, 0, int(name.removeprefix("chain/")))
        return plain_bytes(self.chain[start : end_of(self.chain, start, PAGE_COMMITS)])

    def asked_for(self, kind: str) -> list[str]:
        return [name for name in self.asked if name.startswith(kind)]


def state_name(round_number: int) -> str:
    return f"state/{run().heads[round_number].digest.hex()}"


def end_of(raw: bytes, start: int, commits: int) -> int:
    """Return the end of so many records."""
    for _ in range(commits):
        start += 4 + int.from_bytes(raw[start : start + 4], "big")
    return min(start, len(raw))


class RecoveringPeer:
    """A replica with its disk, and its recovery over a network."""

    def __init__(
        self,
        folder: Path,
        replica: Replica,
        start: Head,
        first: FirstState,
        network: LocalNetwork,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.snapshots = folder, folder / "snapshots"
        self.downloads = folder / "downloads"
        self.replica, self.events = replica, EventList()
        self.journal = Journal(folder / "chain.bin", start)
        self.results = Results(folder / "results", replica.elements, EXACT)
        room = DiskRoom(folder, self.events)
        self.storage = RunStorage(self.journal, self.results, self.snapshots, room, 2, {})
        self.liars: list[str] = []
        watch = Watch(events=self.events, on_lie=lambda who, reason: self.liars.append(who))
        state_bytes = sum(arena.nbytes for arena in replica.state_arenas().values())
        self.donors = PeerDonors(
            network.add(), self.results.usual_bytes, state_bytes, self.downloads, watch
        )
        stop = self.donors.stop
        self.shared = SharedState(ME, replica, self.storage, first, self.events, stop, on_progress)
        self.recovery = Recovery(self.shared, self.donors, self.events)


class Peer(RecoveringPeer):
    """A peer of the small history. `knows_start`: it can make the run's first state itself."""

    def __init__(self, folder: Path, knows_start: bool = True) -> None:
        self.knows_start = knows_start
        self.told: list[tuple[int, int]] = []
        self.on_told: Callable[[int], None] = lambda done: None
        self._network = LocalNetwork()
        self._doors: dict[BlobServer, str] = {}
        first = FirstState(run().digest(0), self._first)
        super().__init__(folder, new_replica(), run().heads[0], first, self._network, self._tell)

    def door(self, blobs: BlobServer, trickle: Trickle | None = None) -> str:
        """The peer that serves this."""
        if blobs not in self._doors:
            serve = trickle.through(blobs.serve) if trickle else blobs.serve
            self._doors[blobs] = self._network.add(serve).peer_id
        return self._doors[blobs]

    def run(self, *donors: BlobServer, discard: bool = False) -> str:
        return self.recovery.run([self.door(each) for each in donors], discard)

    def proven_head(self, donor: str, *claimed_round: int) -> Head:
        """Return the head that a donor's chain proves."""
        return self.recovery.proven(donor, *claimed_round)[0]

    def close(self) -> None:
        self.donors.stop.set()
        self._network.close()

    def _tell(self, done: int, total: int) -> None:
        self.told.append((done, total))
        self.on_told(done)

    def _first(self) -> bool:
        if self.knows_start:
            initialise(self.replica)
        return self.knows_start

    def store(self, journal: int, results: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """Puts on this peer's disk what such a history would have left there."""
        story = run()
        for commit in story.commits[:journal]:
            self.journal.append(commit)
        for number in results:
            self.results.hold(story.result_digest(number), story.results[number])
            self.results.save(story.result_digest(number))
        self.results.keep(set())
        for number in snapshots:
            head, state = story.heads[number].digest, story.states[number]
            write_snapshot(self.snapshots, number, head, story.digest(number), state)

    def at(self, round_number: int) -> bool:
        """Return True if journal, file and state are all at that round."""
        story = run()
        again = Journal(self.folder / "chain.bin", story.heads[0])
        return (
            self.shared.usable
            and self.replica.step_count == round_number
            and self.journal.head == again.head == story.heads[round_number]
            and state_digest(self.replica.state_arenas()) == story.digest(round_number)
        )


Make = Callable[..., Peer]


@pytest.fixture
def peer_of(tmp_path: Path) -> Iterator[Make]:
    run()  # tracing starts threads of its own
    before, made = set(threading.enumerate()), list[Peer]()

    def make(knows_start: bool = True, at: int | None = None) -> Peer:
        """`at`: it has that round's state."""
        peer = Peer(tmp_path / str(len(made)), knows_start)
        made.append(peer)
        if at is not None:
            peer.store(at, range(1, at + 1))
            peer.recovery.restore()
            assert peer.at(at)
            peer.told.clear()
        return peer

    yield make
    for peer in made:
        peer.close()
    assert set(threading.enumerate()) <= before
