"""What a round asks of a replica, done on a real worker's thread with a replica of 64 numbers."""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.clock import ManualClock
from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.optim.clipping import gradient_norm
from atom.swap.voided import Cause, PassVoided
from atom.swarm.arenas import arena_digest, state_digest
from atom.swarm.blobs import BlobShelf
from atom.swarm.chain import (
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
from atom.swarm.identity import Identity
from atom.swarm.local_transport import LocalNetwork, LocalTransport
from atom.swarm.membership import signed_by
from atom.training import hands as hands_module
from atom.training.catch_up import CatchUpFailed
from atom.training.exchange import RingStyle
from atom.training.hands import Bench, ReplicaHands, Schedule
from atom.training.journal import Journal
from atom.training.pacing import SwarmCount
from atom.training.pass_watch import PassWatch
from atom.training.results import Results
from atom.training.round.vocabulary import (
    CaughtUp,
    Event,
    Fetched,
    FetchFailed,
    Frozen,
    RingFinished,
    Stepped,
)
from atom.training.shelf import Shelf
from atom.training.snapshot import list_snapshots
from atom.training.worker import Batch, Work, Worker

ELEMENTS = 64
IDENTITY = Identity.create()
ME = Voter(IDENTITY.peer_id, b"i" * 16)
BALLOT = Ballot(1, ME.peer_id, ME.incarnation)
WAIT_S = 20.0


@dataclass(frozen=True)
class Pass:
    sequences: int
    loss_sum: float
    seconds: float = 0.5


class SmallReplica:
    """The methods of a replica. A pass adds one to every gradient for each sequence."""

    micro_batches = 8

    def __init__(self) -> None:
        self.arenas = {name: torch.zeros(ELEMENTS) for name in ("master", "exp_avg", "exp_avg_sq")}
        self.gradients = torch.zeros(ELEMENTS)
        self.gradients_tag = b""
        self.sequences, self.loss_sum, self.round = 0, 0.0, 0
        self.watch = PassWatch(ManualClock())
        self.in_pass = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def run_pass(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> Pass:
        self.in_pass.set()
        assert self.may_end.wait(WAIT_S)
        count = sum(len(batch["tokens"]) for batch in batches)
        self.gradients += count
        self.sequences += count
        self.loss_sum += 2.0 * count
        return Pass(count, 2.0 * count)

    def reset_gradients(self, tag: bytes = b"") -> None:
        self.gradients.zero_()
        self.gradients_tag, self.sequences, self.loss_sum = tag, 0, 0.0

    def apply(self, mean_gradient: Tensor, gradient_norm: float, round: int) -> None:
        assert round == self.round + 1
        self.arenas["master"] -= mean_gradient
        self.round = round

    def state_arenas(self) -> dict[str, Tensor]:
        return self.arenas

    def load_state(self, arenas: Mapping[str, Tensor], round: int) -> None:
        for name, arena in self.arenas.items():
            arena.copy_(arenas[name])
        self.round = round

    def evaluate(self, batches: Sequence[Batch]) -> float:
        return float(len(batches))


class SmallDeck:
    """Deals nothing in particular, and remembers for which heads it was asked to."""

    def __init__(self) -> None:
        self.dealt: list[bytes] = []

    def deal(self, head: Head) -> None:
        self.dealt.append(head.digest)

    def next_batch(self, sequences: int) -> Batch:
        return {"tokens": torch.zeros(sequences, 2)}

    def validation_batches(self, batches: int, sequences: int) -> list[Batch]:
        return [self.next_batch(sequences) for _ in range(batches)]


class ScriptedReplay:
    """Does what the test says instead of catching up."""

    def __init__(self) -> None:
        self.usable = True
        self.restored = False
        self.on_run: Callable[[Mapping[str, bytes], bool], None] = lambda donors, discard: None
        self.on_fetch: Callable[[bytes], Tensor] = lambda digest: torch.ones(ELEMENTS)

    def restore(self) -> None:
        self.restored = True

    def run(self, donors: Mapping[str, bytes], discard: bool) -> None:
        self.on_run(donors, discard)

    def fetch_result(self, digest: bytes, peers: Sequence[str]) -> Tensor:
        return self.on_fetch(digest)


class Stage:
    """Hands with everything around them, begun and standing still."""

    def __init__(self, folder: Path, schedule: Schedule | None = None) -> None:
        self.replica, self.deck, self.replay = SmallReplica(), SmallDeck(), ScriptedReplay()
        self.clock, self.events = ManualClock(100.0), EventList()
        self.start = genesis(b"m" * 32, state_digest(self.replica.arenas), ME)
        self.journal = Journal.open(folder / "chain.bin", self.start)
        self.results = Results(folder / "results", ELEMENTS)
        self.blobs = BlobShelf()
        self.snapshots = folder / "snapshots"
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.passed = threading.Event()
        self.voided: queue.SimpleQueue[PassVoided] = queue.SimpleQueue()
        self.worker = Worker(
            self.replica, Work(8, 4, self.deck.next_batch), self.clock, self.passed.set,
            self.voided.put, self.failures.put,
        )  # fmt: skip
        self.transport = LocalTransport(LocalNetwork(), IDENTITY, ME.incarnation, EventList())
        self.transport.start()
        shelf = Shelf(self.blobs, self.journal, self.results)
        bench: Any = Bench(
            self.replica, self.worker, self.deck, self.journal, self.results, shelf,  # type: ignore[arg-type]
            self.replay, self.snapshots,  # type: ignore[arg-type]
        )  # fmt: skip
        self.hands = ReplicaHands(
            bench, self.transport, schedule or Schedule(2, None, 0, 4, 16), self.clock,
            self.events, RingStyle(),
        )  # fmt: skip
        self.on_post: Callable[[Event], None] = lambda event: None
        self.hands.bind(self._post, lambda: None)
        self.worker.start()

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

    def step(self, commit: Commit) -> Stepped:
        self.hands.apply(commit, self.journal.head.after(commit.value))
        stepped = self.next_event()
        assert isinstance(stepped, Stepped)
        self.on_worker()  # what follows the step is done too
        return stepped

    def close(self) -> None:
        self.replica.may_end.set()
        self.hands.close()
        self.worker.close()
        self.transport.close()
        for thread in threading.enumerate():
            if thread.name in {"ring", "fetch"}:
                thread.join(WAIT_S)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    before = threading.active_count()
    stage = Stage(tmp_path)
    yield stage
    stage.close()
    assert threading.active_count() <= before  # those of other tests may end meanwhile
    assert stage.failures.empty(), stage.failures.get()


def kinds(stage: Stage) -> list[str]:
    return [event["event"] for event in stage.events.events]


# ---- counting


def test_a_freeze_is_answered_at_the_end_of_the_pass(stage: Stage) -> None:
    stage.replica.may_end.clear()
    stage.worker.release("starting")
    assert stage.replica.in_pass.wait(WAIT_S)
    stage.hands.freeze(BALLOT)
    assert stage.posted.empty(), "in the middle of a pass nothing is counted yet"
    stage.replica.may_end.set()
    assert stage.next_event() == Frozen(BALLOT, 8, 16.0)
    assert stage.hands.own_sequences() == 8


def test_frozen_until_thawed(stage: Stage) -> None:
    stage.hands.freeze(BALLOT)
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    stage.worker.release("starting")
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    stage.hands.thaw()
    assert stage.passed.wait(WAIT_S)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_count_for_nothing(stage: Stage, bad: float) -> None:
    stage.train()
    stage.on_worker(lambda: stage.replica.gradients.index_fill_(0, torch.tensor([5]), bad))
    stage.hands.freeze(BALLOT)
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    assert stage.events.events == [{"event": "gradients-dropped", "reason": "not-finite"}]
    assert not stage.replica.gradients.any()
    assert stage.replica.gradients_tag == stage.start.digest


def test_the_swarms_progress_reaches_the_worker(stage: Stage) -> None:
    swarm = SwarmCount(others_sequences=100, peers=3, seen_at=1.0)
    stage.hands.tell_progress(swarm)
    assert stage.worker.swarm == swarm


def test_void_passes_are_counted_and_told_less_and_less_often(stage: Stage) -> None:
    void = PassVoided(Cause.LOSS, "nan in micro-batch 0", sequences_lost=4, hint="look")
    told = [stage.hands.voided(void) for _ in range(9)]
    assert [number for number, said in enumerate(told, start=1) if said] == [1, 2, 4, 8]
    first, last = stage.events.events[0], stage.events.events[-1]
    assert first == {
        "event": "pass-voided", "reason": "loss-not-finite", "detail": "nan in micro-batch 0",
        "hint": "look", "in_a_row": 1, "sequences_lost": 4,
        "passes_voided": {"loss-not-finite": 1, "gradients-not-finite": 0, "out-of-memory": 0},
    }  # fmt: skip
    assert (last["in_a_row"], last["passes_voided"]["loss-not-finite"]) == (8, 8)
    assert stage.hands.tally.sequences_dropped == 36
    stage.hands.tally.void.sound()
    assert stage.hands.voided(void), "the first in a row again"


def test_a_round_says_how_many_of_its_passes_were_void(stage: Stage) -> None:
    for voided in (2, 0):
        for _ in range(voided):
            stage.hands.voided(PassVoided(Cause.GRADIENTS, "though the loss is finite"))
        stage.step(stage.commit(stage.hold(float(voided))))
    rounds = [event for event in stage.events.events if event["event"] == "round"]
    assert [event["passes_voided"] for event in rounds] == [2, 0]


def test_a_validation_short_of_memory_is_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Schedule(2, 1, 5, 4, 16))
    failures = [PassVoided(Cause.MEMORY, "scripted"), PassVoided(Cause.MEMORY, "scripted")]
    evaluate = stage.replica.evaluate

    def short_of_memory(batches: Sequence[Batch]) -> float:
        if failures:
            raise failures.pop()
        return evaluate(batches)

    stage.replica.evaluate = short_of_memory  # type: ignore[method-assign]
    stage.step(stage.commit(stage.hold(1.0)))
    stage.close()
    assert kinds(stage) == ["pass-voided", "pass-voided", "round"]
    assert stage.events.events[-1]["validation_loss"] == 5.0
    assert stage.failures.empty()


# ---- ring and step


def test_a_round_alone_from_ring_to_step(stage: Stage) -> None:
    stage.train()
    stage.hands.freeze(BALLOT)
    frozen = stage.next_event()
    assert isinstance(frozen, Frozen)
    part = Contribution(ME.peer_id, ME.incarnation, frozen.sequences, frozen.loss_sum)
    stage.hands.start_ring(stage.start.digest, BALLOT, (part,))
    finished = stage.next_event()
    assert isinstance(finished, RingFinished)
    stage.step(stage.commit(finished.digest))
    assert torch.equal(stage.replica.arenas["master"], torch.full((ELEMENTS,), -1.0))


def test_a_step_is_written_down_and_told(stage: Stage) -> None:
    stage.train()
    result = stage.hold(0.25)
    commit = stage.commit(result)
    head = stage.start.after(commit.value)
    stepped = stage.step(commit)
    assert stepped == Stepped(head.digest, state_digest(stage.replica.arenas))
    assert stage.journal.head == head
    assert stage.results.stored() == [result]
    assert {f"chain/{head.digest.hex()}", f"result/{result.hex()}"} <= set(stage.blobs.names())
    assert stage.replica.sequences == 0
    assert not stage.replica.gradients.any()
    assert stage.replica.gradients_tag == stage.deck.dealt[-1] == head.digest
    assert list_snapshots(stage.snapshots) == [], "only every second round"


def test_a_held_result_is_offered_before_its_round_is_decided(stage: Stage) -> None:
    result = stage.hold(0.25)
    stage.hands.offer_result(result)
    stage.hands.offer_result(result)
    stage.hands.offer_result(b"x" * 32)
    stage.on_worker()
    assert stage.results.stored() == [result]
    assert f"result/{result.hex()}" in stage.blobs.names()
    stage.step(stage.commit(result))
    assert stage.failures.empty()


def test_what_had_a_part_is_tallied(stage: Stage) -> None:
    stage.train()
    stage.step(stage.commit(stage.hold(0.1), sequences=6))
    tally = stage.hands.tally
    assert (tally.rounds_joined, tally.sequences_committed, tally.sequences_dropped) == (1, 6, 2)
    assert (tally.loss, tally.last_commit_at) == (4.0, 100.0)
    stage.clock.advance(4.0)
    other = Identity.create().peer_id
    stage.step(stage.commit(stage.hold(0.2), sequences=10, contributor=other))
    assert (tally.rounds_joined, tally.sequences_committed, tally.sequences_dropped) == (1, 6, 2)
    assert tally.tokens_per_s == 10 * 16 / 4.0
    rounds = [event for event in stage.events.events if event["event"] == "round"]
    assert [event["sequences"] for event in rounds] == [6, 10]


def test_what_is_held_right_after_the_step_survives_it(stage: Stage) -> None:
    held: list[bytes] = []

    def hold_the_next(event: Event) -> None:
        if isinstance(event, Stepped):  # the next round's ring may be as quick as this
            held.append(stage.hold(7.0))

    stage.on_post = hold_the_next
    stage.step(stage.commit(stage.hold(0.5)))
    kept = stage.results.get(held[0])
    assert kept is not None
    assert torch.equal(kept, torch.full((ELEMENTS,), 7.0))


def test_snapshots_are_due_by_the_schedule_and_at_the_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Schedule(2, 3, 5, 4, 16, last_round=3))
    names = []
    for number in range(1, 4):
        names.append(stage.hold(float(number)))
        stage.step(stage.commit(names[-1]))
    stage.close()
    assert [snapshot.round for snapshot in list_snapshots(stage.snapshots)] == [3, 2]
    assert stage.results.stored() == [names[2]], "the older snapshot covers the others"
    validated = [event.get("validation_loss") for event in stage.events.events]
    assert validated == [None, None, 5.0]
    assert stage.failures.empty()


def test_the_daemon_may_hold_the_worker_after_a_step(stage: Stage) -> None:
    stage.hands.after_step = lambda: stage.worker.hold("paused")
    stage.train()
    stage.passed.clear()
    stage.step(stage.commit(stage.hold(0.5)))
    stage.hands.thaw()
    assert stage.on_worker(lambda: stage.replica.sequences) == 0


# ---- fetching


def test_a_fetched_result_is_held(stage: Stage) -> None:
    result = torch.full((ELEMENTS,), 3.0)
    stage.replay.on_fetch = lambda digest: result
    stage.hands.fetch_result(b"r" * 32, ("a",))
    assert stage.next_event() == Fetched(b"r" * 32, gradient_norm(result))
    assert stage.results.get(b"r" * 32) is result


@pytest.mark.parametrize(
    "fault",
    [RuntimeError("any"), MemoryError(), PeerRefused(Reason.NOT_FOUND), ConnectionError("gone")],
    ids=lambda fault: type(fault).__name__,
)
def test_whatever_ends_a_fetch_the_round_hears_of_it(
    stage: Stage, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(digest: bytes) -> Tensor:
        raise fault

    monkeypatch.setattr(hands_module, "FETCH_PAUSE_S", 0.0)
    stage.replay.on_fetch = fail
    stage.hands.fetch_result(b"r" * 32, ("a",))
    assert stage.next_event() == FetchFailed(b"r" * 32)
    assert kinds(stage) == ["fetch-failed"]
    assert stage.results.get(b"r" * 32) is None


def test_a_fetch_asks_again_for_what_is_not_there_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def late(digest: bytes) -> Tensor:
        asked.append(digest)
        if len(asked) < hands_module.FETCH_ATTEMPTS:
            raise PeerRefused(Reason.NOT_FOUND, "not on the disk yet")
        return torch.ones(ELEMENTS)

    monkeypatch.setattr(hands_module, "FETCH_PAUSE_S", 0.0)
    stage.replay.on_fetch = late
    stage.hands.fetch_result(b"r" * 32, ("a",))
    assert isinstance(stage.next_event(), Fetched)


# ---- catching up, beginning


def test_a_failed_catch_up_leaves_us_where_we_were(stage: Stage) -> None:
    def fail(donors: Mapping[str, bytes], discard: bool) -> None:
        raise CatchUpFailed("lies", ("a", "b"))

    stage.train()
    stage.replay.on_run = fail
    stage.hands.catch_up({"a": b"h" * 32}, "behind", discard=False)
    state = state_digest(stage.replica.arenas)
    caught = stage.next_event()
    assert isinstance(caught, CaughtUp)
    assert (caught.head, caught.state_digest) == (stage.start, state)
    assert caught.shunned == ("a", "b")
    assert kinds(stage) == ["catching-up", "catch-up-failed"]
    assert stage.replica.sequences == 8, "the gradients still belong to this head"


def test_without_any_state_the_digest_is_empty(stage: Stage) -> None:
    def fail(donors: Mapping[str, bytes], discard: bool) -> None:
        stage.replay.usable = False
        raise CatchUpFailed("nobody there")

    stage.replay.on_run = fail
    stage.hands.catch_up({}, "no-state", discard=True)
    assert stage.next_event() == CaughtUp(stage.start, b"", ())


def test_a_new_head_starts_a_new_round(stage: Stage) -> None:
    def bring(donors: Mapping[str, bytes], discard: bool) -> None:
        commit = stage.commit(b"r" * 32)
        stage.journal.append(commit)
        stage.replica.apply(torch.ones(ELEMENTS), 1.0, 1)

    stage.train()
    stage.replay.on_run = bring
    stage.hands.catch_up({"a": b"h" * 32}, "behind", discard=False)
    state = state_digest({**stage.replica.arenas, "master": -torch.ones(ELEMENTS)})
    assert stage.next_event() == CaughtUp(stage.journal.head, state)
    assert stage.journal.head.round == 1
    assert stage.replica.sequences == 0
    assert stage.replica.gradients_tag == stage.journal.head.digest
    assert [snapshot.round for snapshot in list_snapshots(stage.snapshots)] == [1]


def test_begin_offers_a_first_snapshot(stage: Stage) -> None:
    digest = stage.on_worker(stage.hands.begin)
    assert stage.replay.restored
    assert digest == state_digest(stage.replica.arenas)
    snapshot = list_snapshots(stage.snapshots)[0]
    assert (snapshot.round, snapshot.state_digest) == (0, digest)
    assert {"snapshots", f"state/{stage.start.digest.hex()}"} <= set(stage.blobs.names())


def test_begin_with_nothing_offers_nothing(stage: Stage) -> None:
    stage.replay.usable = False
    assert stage.on_worker(stage.hands.begin) == b""
    assert list_snapshots(stage.snapshots) == []
    assert stage.blobs.names() == []


def test_closing_ends_a_fetch_that_would_ask_again(stage: Stage) -> None:
    asked = threading.Event()

    def fail(digest: bytes) -> Tensor:
        asked.set()
        raise ConnectionError("gone")

    stage.replay.on_fetch = fail
    stage.hands.fetch_result(b"r" * 32, ("a",))
    assert asked.wait(WAIT_S)
    stage.hands.close()
    assert stage.next_event() == FetchFailed(b"r" * 32)
