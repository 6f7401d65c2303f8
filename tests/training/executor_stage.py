"""An executor with everything around it, on a real worker's thread."""

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from atom.base.errors import PeerRefused, Reason
from atom.config import peer_file
from atom.config.model_and_data import Data
from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount
from atom.swarm.exchange.codec import EXACT
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.stream.frames import Pace
from atom.training.round.events import Apply, Event, Freeze, Stepped
from atom.training.round_executor import RoundExecutor
from atom.training.shared_state import FirstState, SharedState
from atom.training.storage.checkpoints import Checkpoints
from atom.training.storage.disk import DiskRoom
from atom.training.storage.results import Results
from atom.training.storage.run_storage import Journal, RunStorage, list_snapshots
from tests.event_list import EventList
from tests.swarm.chain_samples import a_commit, beginning, voter_of
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.means import encoded
from tests.training.worker_scene import ELEMENTS, WAIT_S, WorkerScene

IDENTITY = Identity.create()
ME = voter_of(IDENTITY)
NONE = peer_file.Checkpoints()
DATA = Data(source="python-stdlib", validation_fraction=0.1)
BALLOT = Ballot(1, ME.peer_id, ME.incarnation)


def a_run(snapshots: int = 2, validations: int | None = None, last: int | None = None) -> Any:
    """Return a run file with these intervals."""
    validation = validations and SimpleNamespace(every_rounds=validations, batches=5)
    snapshot = SimpleNamespace(every_rounds=snapshots)
    return SimpleNamespace(
        run=SimpleNamespace(rounds=last), snapshot=snapshot, validation=validation, data=DATA
    )


class SmallDisk(DiskRoom):
    """Has as much room as the test says."""

    free: Callable[[], int] = staticmethod(lambda: 1 << 30)

    def free_bytes(self) -> int:
        return self.free()


class ScriptedRecovery:
    """Does what the test says instead of catching up."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self.on_run: Callable[[], str | None] = lambda: None
        self.on_chain: Callable[[], Head]
        self.on_fetch: Callable[[bytes], None]

    def restore(self) -> bytes:
        return self._shared.restore(self._on_disk, is_chosen=True)

    def _on_disk(self, digest: bytes) -> None:
        found = self._shared.storage.results.get(digest)
        if found is None:
            raise PeerRefused(Reason.NOT_FOUND)
        self._shared.storage.results.hold(digest, found)

    def run(
        self, donors: Sequence[str], discard: bool, forks: frozenset[bytes] | None = None
    ) -> str:
        return self.on_run() or ""

    def proven(self, donor: str, claimed_round: int) -> tuple[Head, tuple[Head, ...]]:
        return self.on_chain(), ()

    def fetch_result(self, digest: bytes, peers: Sequence[str], pace: Pace) -> None:
        self.on_fetch(digest)


class Stage(WorkerScene):
    """Everything that a round's executor needs, begun and standing still."""

    def __init__(
        self,
        folder: Path,
        run: Any = None,
        keeps: peer_file.Checkpoints = NONE,
    ) -> None:
        """`run`: by default every second round leaves a snapshot, and none validates."""
        super().__init__(global_batch=8)
        self.events = EventList()
        self.start = beginning(IDENTITY, state_digest(self.replica.arenas))
        self.journal = Journal(folder / "chain.bin", self.start)
        self.results = Results(folder / "results", ELEMENTS, EXACT)
        self.snapshots = folder / "snapshots"
        self.posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.transport = LocalTransport(LocalNetwork(), IDENTITY, ME.incarnation, EventList())
        self.transport.start()
        self.folder, self.room = folder, SmallDisk(folder, self.events)
        self.storage = RunStorage(self.journal, self.results, self.snapshots, self.room, 2, {})
        self.checkpoints = Checkpoints(folder / "checkpoints", self.storage, keeps)
        self.blobs = BlobServer(self.storage.content)
        first = FirstState(state_digest(self.replica.arenas), lambda: True)
        replica: Any = self.replica
        self.shared = SharedState(ME, replica, self.storage, first, self.events, threading.Event())
        self.shared.usable = True
        self.recovery = ScriptedRecovery(self.shared)
        recovery: Any = self.recovery
        self.executor = RoundExecutor(
            self.shared, self.worker, recovery, self.transport, self.clock, self.events,
            self.checkpoints, run or a_run(), self._post, lambda: self.on_round_begun(),
        )  # fmt: skip
        self.on_post: Callable[[Event], None] = lambda event: None
        self.on_round_begun: Callable[[], None] = lambda: None

    def _post(self, event: Event) -> None:
        self.on_post(event)
        self.posted.put(event)

    def next_event(self) -> Event:
        return self.posted.get(timeout=WAIT_S)

    def serves(self, name: str) -> bool:
        """Return True if the peer serves a blob of that name."""
        return self.storage.content(name) is not None

    def stored(self) -> list[bytes]:
        """Digests of the results on disk."""
        found = self.results.folder.glob("*.safetensors")
        return sorted(bytes.fromhex(path.stem) for path in found)

    def hold(self, value: float) -> bytes:
        """A held result with every element at `value`."""
        result = encoded(torch.full((ELEMENTS,), value))
        name = state_digest(result.arenas)
        self.results.hold(name, result)
        return name

    def commit(self, result: bytes, sequences: int = 8, contributor: str = ME.peer_id) -> Commit:
        return a_commit(
            self.journal.head, {}, [IDENTITY], result_digest=result, gradient_norm=1.0,
            parent_state_digest=state_digest(self.replica.arenas),
            contributions=(MemberCount(contributor, ME.incarnation, sequences, 24.0),),
        )  # fmt: skip

    def apply(self, commit: Commit) -> Head:
        head = self.journal.head.after(commit.value)
        self.executor.carry_out(Apply(commit))
        return head

    def step(self, commit: Commit) -> Stepped:
        """A whole step, and no pass of the next round."""
        self.worker.hold("standing still")
        self.apply(commit)
        stepped = self.next_event()
        assert isinstance(stepped, Stepped)
        self.settle()
        return stepped

    def freeze(self, ballot: Ballot = BALLOT, goes_on: bool = True) -> Event:
        """Return the answer to a freeze."""
        self.executor.carry_out(Freeze(ballot, goes_on))
        return self.next_event()

    def settle(self) -> None:
        """Wait until the work after the step is done, too."""
        self.on_worker(lambda: self.shared.settled.result())

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events.events if event["event"] == kind]

    def close(self) -> None:
        super().close()
        self.executor.close()
        self.transport.close()
        for thread in threading.enumerate():
            if thread.name in {"ring", "fetch"}:
                thread.join(WAIT_S)


def kinds(stage: Stage) -> list[str]:
    return [event["event"] for event in stage.events.events]


def snapshots(stage: Stage) -> list[int]:
    """Rounds of the snapshots on disk, newest first."""
    return [snapshot.round for snapshot in list_snapshots(stage.snapshots)]
