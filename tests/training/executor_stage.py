"""Executor with everything around them, on a real worker's thread; a replica of 64 numbers whose
passes and steps a test may hold."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atom.base.events import EventList
from atom.swap.voided import PassVoided
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import arena_digest, state_digest
from atom.swarm.state.blobs import BlobStore
from atom.swarm.stream.frames import Pace
from atom.training.exchange import GradientEncoding
from atom.training.replica.pass_watch import PassWatch
from atom.training.replica.worker import Batch, Work, Worker
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.events import (
    Apply,
    Event,
    Stepped,
)
from atom.training.round_executor import RoundExecutor, Schedule, TrainingContext
from atom.training.storage.disk import DiskRoom
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.run_storage import RunStorage
from tests.manual_clock import ManualClock
from tests.swarm.local_transport import LocalNetwork, LocalTransport

ELEMENTS = 64
IDENTITY = Identity.create()
ME = Voter(IDENTITY.peer_id, b"i" * 16)
BALLOT = Ballot(1, ME.peer_id, ME.incarnation)
EVERY_SECOND_ROUND = Schedule(2, None, 0, 16)
"""It leaves a snapshot, and none validates."""
WAIT_S = 20.0
"""Thrice what the passes of a round of 8 sequences add to its mean."""


@dataclass(frozen=True)
class Pass:
    sequences: int
    loss_sum: float
    seconds: float = 0.5


class FreeDevice:
    """Engines without memory to give back, as a gate sees them."""

    def preempt(self, wait_s: float) -> bool:
        return True

    def resume(self) -> None:
        pass


class SmallReplica:
    """The methods of a replica. A pass adds one to every gradient for each sequence."""

    micro_batches = 8
    breakable = True

    def __init__(self) -> None:
        self.arenas = {name: torch.zeros(ELEMENTS) for name in ("master", "exp_avg", "exp_avg_sq")}
        self.gradients = torch.zeros(ELEMENTS)
        self.gradients_tag = b""
        self.sequences, self.loss_sum, self.round = 0, 0.0, 0
        self.watch = PassWatch(ManualClock())
        self.engines = FreeDevice()
        self.in_pass = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.may_step = threading.Event()
        self.may_step.set()
        self.step_fails: Exception | None = None
        self.steps: list[int] = []
        self._step: Tensor | None = None

    def run_pass(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> Pass:
        self.in_pass.set()
        assert self.may_end.wait(WAIT_S)
        count = sum(len(batch["tokens"]) for batch in batches)
        self.gradients += count
        self.sequences += count
        self.loss_sum += 2.0 * count
        return Pass(count, 2.0 * count)

    def contribution(self) -> torch.Tensor:
        return self.gradients

    def reset_gradients(self, tag: bytes = b"") -> None:
        self.gradients.zero_()
        self.gradients_tag, self.sequences, self.loss_sum = tag, 0, 0.0

    def begin_step(self, mean_gradient: Tensor, gradient_norm: float, round: int) -> None:
        assert round == self.round + 1
        assert self._step is None, "two steps at once"
        self._step, self.round = mean_gradient, round
        self.steps.append(round)

    def finish_step(self) -> None:
        assert self.may_step.wait(WAIT_S)
        if self.step_fails is not None:
            raise self.step_fails
        if self._step is not None:
            self.arenas["master"] -= self._step
            self._step = None

    def state_arenas(self) -> dict[str, Tensor]:
        assert self._step is None, "in the middle of a step there is no state"
        return self.arenas

    def load_state(self, arenas: Mapping[str, Tensor], round: int) -> None:
        for name, arena in self.arenas.items():
            arena.copy_(arenas[name])
        self.round = round

    def evaluate(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        return float(len(batches))


class SmallDeck:
    """Deals nothing in particular, and remembers for which heads it was asked to."""

    def __init__(self) -> None:
        self.dealt: list[bytes] = []

    def deal(self, head: Head) -> None:
        self.dealt.append(head.digest)

    def next_batch(self, sequences: int) -> Batch:
        return {"tokens": torch.zeros(sequences, 2)}

    def put_back(self, sequences: int) -> None:
        """Nobody asks which they were."""

    def validation_batches(self, batches: int, sequences: int) -> list[Batch]:
        return [self.next_batch(sequences) for _ in range(batches)]


class ScriptedStateSync:
    """Does what the test says instead of catching up."""

    def __init__(self) -> None:
        self.usable = True
        self.restored = False
        self.on_run: Callable[[Sequence[str], bool], str | None] = lambda donors, discard: None
        self.on_fetch: Callable[[bytes], Tensor] = lambda digest: torch.ones(ELEMENTS)
        self.on_chain: Callable[[str], Head]

    def restore(self) -> None:
        self.restored = True

    def run(self, donors: Sequence[str], discard: bool) -> str:
        return self.on_run(donors, discard) or ""

    def proven_head(self, donor: str) -> Head:
        return self.on_chain(donor)

    def fetch_result(self, digest: bytes, peers: Sequence[str], pace: Pace) -> Tensor:
        return self.on_fetch(digest)


class Stage:
    """Executor with everything around them, begun and standing still."""

    def __init__(
        self,
        folder: Path,
        schedule: Schedule = EVERY_SECOND_ROUND,
        room: type[DiskRoom] = DiskRoom,
    ) -> None:
        self.replica, self.deck, self.state_sync = SmallReplica(), SmallDeck(), ScriptedStateSync()
        self.clock, self.events = ManualClock(100.0), EventList()
        self.start = genesis(b"m" * 32, state_digest(self.replica.arenas), ME)
        self.replica.gradients_tag = self.start.digest
        self.journal = Journal.open(folder / "chain.bin", self.start)
        self.results = Results(folder / "results", ELEMENTS)
        self.snapshots = folder / "snapshots"
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.passed = threading.Event()
        self.voided: queue.SimpleQueue[PassVoided] = queue.SimpleQueue()
        self.worker = Worker(
            self.replica, Work(GlobalBatch(8), 4, self.deck),
            self.clock,
            self.passed.set, self.voided.put, self.failures.put,
        )  # fmt: skip
        self.transport = LocalTransport(LocalNetwork(), IDENTITY, ME.incarnation, EventList())
        self.transport.start()
        self.folder, self.room = folder, room(folder, self.events)
        self.storage = RunStorage(self.journal, self.results, self.snapshots, self.room)
        self.blobs = BlobStore(self.storage.content)
        context = TrainingContext(
            ME, self.replica, self.worker, self.storage, self.state_sync,  # type: ignore[arg-type]
            self.transport, self.clock, self.events,
        )  # fmt: skip
        self.executor = RoundExecutor(
            context, schedule, GradientEncoding(), self._post, self._round_begun
        )
        self.on_post: Callable[[Event], None] = lambda event: None
        self.on_round_begun: Callable[[], None] = lambda: None
        self.worker.start()

    def _round_begun(self) -> None:
        self.on_round_begun()

    def _post(self, event: Event) -> None:
        self.on_post(event)
        self.posted.put(event)

    def next_event(self) -> Event:
        return self.posted.get(timeout=WAIT_S)

    def on_worker(self, command: Callable[[], Any] = lambda: None) -> Any:
        """What `command` returns on the worker's thread, behind everything submitted."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.worker.submit(lambda: answers.put(command()))
        return answers.get(timeout=WAIT_S)

    def train(self) -> None:
        """Lets it work off its global batch of 8."""
        self.worker.release("starting")
        assert self.passed.wait(WAIT_S)
        self.on_worker()

    def serves(self, name: str) -> bool:
        """Whether others get anything under that name."""
        return self.storage.content(name) is not None

    def stored(self) -> list[bytes]:
        """Digests of the results on disk."""
        found = self.results.folder.glob("*.safetensors")
        return sorted(bytes.fromhex(path.stem) for path in found)

    def hold(self, value: float) -> bytes:
        """A held result with every element at `value`."""
        result = self.results.buffer().fill_(value)
        name = arena_digest(result)
        self.results.hold(name, result)
        return name

    def commit(self, result: bytes, sequences: int = 8, contributor: str = ME.peer_id) -> Commit:
        head = self.journal.head
        value = Value(
            parent=head.digest,
            round=head.round + 1,
            origin=BALLOT,
            result_digest=result,
            gradient_norm=1.0,
            parent_state_digest=state_digest(self.replica.arenas),
            contributions=(Contribution(contributor, ME.incarnation, sequences, 24.0),),
            voters_next=(ME,),
        )
        payload = signed_by(ME, vote_payload(head.digest, BALLOT, value.digest()))
        return Commit(value, BALLOT, (Vote(ME, IDENTITY.sign(VOTE_DOMAIN, payload)),))

    def apply(self, commit: Commit) -> Head:
        head = self.journal.head.after(commit.value)
        self.executor.carry_out(Apply(commit, head))
        return head

    def step(self, commit: Commit) -> Stepped:
        """A whole step, and no pass of the next round."""
        self.worker.hold("standing still")
        self.apply(commit)
        stepped = self.next_event()
        assert isinstance(stepped, Stepped)
        self.settle()
        return stepped

    def settle(self) -> None:
        """What follows the step is done, too."""
        self.on_worker(lambda: self.executor._settling.result())

    def close(self) -> None:
        self.replica.may_end.set()
        self.replica.may_step.set()
        self.worker.close()
        self.executor.close()
        self.transport.close()
        for thread in threading.enumerate():
            if thread.name in {"ring", "fetch"}:
                thread.join(WAIT_S)


def kinds(stage: Stage) -> list[str]:
    return [event["event"] for event in stage.events.events]
