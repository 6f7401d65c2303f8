"""Who catches up in tests, and donors that say what a test wants."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import Tensor

from atom.base.errors import PeerRefused, StorageError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Head
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.fetch import LIES
from atom.swarm.stream.frames import Pace
from atom.training.state_sync.donors import Arenas, PeerDonors
from atom.training.state_sync.state_sync import FirstState, StateSync
from atom.training.storage.disk import DiskRoom
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.run_storage import RunStorage, write_snapshot
from tests.training.small_history import initialise, new_replica, run

PAGE_COMMITS = 2


class Served:
    """What one donor says. Everything may be replaced by a lie."""

    def __init__(self, offers: Sequence[int] = (), results: Sequence[int] = range(1, 6)) -> None:
        story = run()
        self.chain = story.chain()
        self.offers = [story.heads[number].digest for number in offers]
        self.states = {number: story.states[number] for number in offers}
        names = [story.commits[number - 1].value.result_digest for number in results]
        self.results = {name: story.results[name] for name in names}


def end_of(raw: bytes, start: int, commits: int) -> int:
    """Where so many records end."""
    for _ in range(commits):
        start += 4 + int.from_bytes(raw[start : start + 4], "big")
    return min(start, len(raw))


class FakeDonors(PeerDonors):
    """Answers from the table; remembers which states were asked for and forgotten."""

    closed = False

    def __init__(self, table: dict[str, Served]) -> None:
        self.table = table
        self.asked: list[int] = []
        self.kept: set[int] = {-1}
        self.kept_when_asked: list[set[int]] = []
        self.begun: set[int] = set()
        self.room: int | None = None
        """For how many states the disk has room; None: for any number."""
        self.chain_bytes: list[int] = []
        self.liars: list[tuple[str, Reason]] = []

    @contextmanager
    def chain(self, peer_id: str) -> Iterator[Callable[[int], bytes]]:
        raw = self._of(peer_id).chain

        def page(since: int) -> bytes:
            start = end_of(raw, 0, since)
            found = raw[start : end_of(raw, start, PAGE_COMMITS)]
            self.chain_bytes.append(len(found))
            return found

        try:
            yield page
        except PeerRefused as refused:
            if refused.reason in LIES:
                self.liars.append((peer_id, refused.reason))
            raise

    def _offers(self, peer_id: str) -> list[bytes]:
        return self.table[peer_id].offers if peer_id in self.table else []

    def _begun(self, head: Head) -> bool:
        return head.round in self.begun

    def state(self, head: Head, peers: Sequence[str], digest: bytes, into: Arenas | None) -> Arenas:
        if into is None and self.room is not None and len(self.kept | {head.round}) > self.room:
            raise StorageError("no room for downloads", "free some disk space")
        self.asked.append(head.round)
        self.kept_when_asked.append(self.kept)
        for peer in peers:
            if head.round in self._of(peer).states:
                found = self._of(peer).states[head.round]
                if state_digest(found) != digest:
                    raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
                for name, arena in (into or {}).items():
                    arena.copy_(found[name])
                return into or found
        raise PeerRefused(Reason.NOT_FOUND, "state")

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> Tensor:
        for peer in peers:
            if peer in self.table and digest in self.table[peer].results:
                return self.table[peer].results[digest].clone()
        raise PeerRefused(Reason.NOT_FOUND, "result")

    def keep_only(self, heads: Collection[Head] = ()) -> None:
        self.kept = {head.round for head in heads}

    def _of(self, peer_id: str) -> Served:
        if peer_id not in self.table:
            raise ConnectionError("gone")
        return self.table[peer_id]


class Peer:
    """A replica with its disk. `knows_start`: it can make the run's first state itself."""

    def __init__(self, folder: Path, knows_start: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.snapshots = folder / "snapshots"
        self.replica = new_replica()
        self.journal = Journal.open(folder / "chain.bin", run().heads[0])
        self.results = Results(folder / "results", self.replica.gradients.numel())
        self.events = EventList()
        room = DiskRoom(folder, self.events)
        self.storage = RunStorage(self.journal, self.results, self.snapshots, room)
        self.knows_start = knows_start
        self.state_sync = self.with_donors(FakeDonors({}))

    def with_donors(self, donors: PeerDonors) -> StateSync:
        first = FirstState(run().digest(0), self._first)
        self.told: list[tuple[int, int]] = []

        def told(done: int, total: int) -> None:
            self.told.append((done, total))

        self.state_sync = StateSync(self.replica, self.storage, donors, first, self.events, told)
        return self.state_sync

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
            name = story.commits[number - 1].value.result_digest
            self.results.hold(name, story.results[name].clone())
            self.results.save(name)
        self.results.release()
        for number in snapshots:
            write_snapshot(
                self.snapshots, number, story.heads[number].digest, story.digest(number),
                story.states[number],
            )  # fmt: skip

    def at(self, round_number: int) -> bool:
        """Whether journal, file and state are all at that round."""
        story = run()
        again = Journal.open(self.folder / "chain.bin", story.heads[0])
        return (
            self.state_sync.usable
            and self.replica.round == round_number
            and self.journal.head == again.head == story.heads[round_number]
            and state_digest(self.replica.state_arenas()) == story.digest(round_number)
        )


Make = Callable[..., Peer]


@pytest.fixture
def peer_of(tmp_path: Path) -> Make:
    made: list[Peer] = []

    def make(knows_start: bool = True, at: int | None = None) -> Peer:
        peer = Peer(tmp_path / str(len(made)), knows_start)
        made.append(peer)
        if at is not None:
            peer.store(at, range(1, at + 1))
            peer.state_sync.restore()
            assert peer.at(at)
        return peer

    return make
