"""What a round asks of a replica, done on a real worker's thread with a replica of 64 numbers; and
the next round counted while a step ends and its digest is taken."""

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swap.engine import PassCancelled
from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Contribution, Head
from atom.swarm.chain.commit_chain import record_of
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training import round_executor
from atom.training.replica.worker import Batch, Pause
from atom.training.round import Patience
from atom.training.round.events import (
    Action,
    CatchUp,
    CaughtUp,
    ChainFetched,
    Event,
    ExchangeFailed,
    ExchangeFinished,
    FetchChain,
    FetchResult,
    Freeze,
    Frozen,
    KeepResults,
    ResultFetched,
    StartExchange,
    Stepped,
    Thaw,
)
from atom.training.round_executor import Schedule
from atom.training.storage import run_storage as storage_module
from atom.training.storage.run_storage import Snapshot, list_snapshots
from tests.training.executor_stage import BALLOT, ME, Stage, kinds
from tests.training.worker_scene import ELEMENTS, WAIT_S, ShouldStop

STRANGER = Identity.create().peer_id
BEHIND = CatchUp(("a",), "behind")
ODD = CatchUp(("a",), "state-mismatch", discard=True)


NewStage = Callable[..., Stage]


@pytest.fixture
def new_stage(tmp_path: Path) -> Iterator[NewStage]:
    """Makes the stage, closes it at the end, and finds no thread left. By default every second
    round leaves a snapshot, and none validates."""
    before, stages = set(threading.enumerate()), list[Stage]()

    def make(snapshots: int = 2, validations: int | None = None, last: int | None = None) -> Stage:
        stages.append(Stage(tmp_path, Schedule(snapshots, validations, 5, 16, last)))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
        assert stage.failures.empty(), stage.failures.get()
    assert set(threading.enumerate()) <= before


@pytest.fixture
def stage(new_stage: NewStage) -> Stage:
    return new_stage()


def rounds(stage: Stage) -> list[dict[str, Any]]:
    return [event for event in stage.events.events if event["event"] == "round"]


# ---- counting


def test_a_freeze_is_answered_at_the_end_of_the_pass_and_holds_until_thawed(stage: Stage) -> None:
    in_pass, may_end = threading.Event(), threading.Event()

    def until_told(should_stop: ShouldStop) -> None:
        in_pass.set()
        assert may_end.wait(WAIT_S)

    stage.replica.during_pass = until_told
    stage.worker.release("starting")
    assert in_pass.wait(WAIT_S)
    stage.executor.carry_out(Freeze(BALLOT))
    assert stage.posted.empty(), "in the middle of a pass nothing is counted yet"
    may_end.set()
    assert stage.next_event() == Frozen(BALLOT, 8, 16.0)
    assert stage.worker.own_sequences(stage.replica.gradients_tag) == 8
    assert stage.worker.own_sequences(b"the next head") == 0, "another round's"
    stage.on_worker(stage.replica.reset_gradients)
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    stage.passed.clear()
    stage.executor.carry_out(Thaw())
    assert stage.passed.wait(WAIT_S)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_count_for_nothing(stage: Stage, bad: float) -> None:
    stage.train()
    stage.on_worker(lambda: stage.replica.gradients.index_fill_(0, torch.tensor([5]), bad))
    stage.executor.carry_out(Freeze(BALLOT))
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    assert stage.events.events == [{"event": "gradients-dropped", "reason": "not-finite"}]
    assert not stage.replica.gradients.any()
    assert stage.replica.gradients_tag == stage.start.digest


def test_void_passes_are_counted_and_told_less_and_less_often(stage: Stage) -> None:
    void = PassVoided(Cause.LOSS, "nan in micro-batch 0", sequences_lost=4, hint="look")
    for _ in range(9):
        stage.executor.voided(void)
    assert [event["in_a_row"] for event in stage.events.events] == [1, 2, 4, 8]
    first, last = stage.events.events[0], stage.events.events[-1]
    assert first == {
        "event": "pass-voided", "reason": "loss-not-finite", "detail": "nan in micro-batch 0",
        "hint": "look", "in_a_row": 1, "sequences_lost": 4,
        "passes_voided": {
            "loss-not-finite": 1, "gradients-not-finite": 0, "out-of-memory": 0
        },
    }  # fmt: skip
    assert (last["in_a_row"], last["passes_voided"]["loss-not-finite"]) == (8, 8)
    assert stage.executor.stats.sequences_dropped == 36
    stats = stage.executor.stats
    assert (stats.void_in_a_row, stats.void_cause) == (9, "loss-not-finite")
    stats.pass_counted()
    assert (stats.void_in_a_row, stats.void_cause) == (0, "")
    assert stage.executor.voided(PassVoided(Cause.MEMORY, "no room")), "the first of this cause"
    assert stage.events.events[-1]["in_a_row"] == 1


def test_a_round_says_how_many_of_its_passes_were_void(stage: Stage) -> None:
    for voided in (2, 0):
        for _ in range(voided):
            stage.executor.voided(PassVoided(Cause.GRADIENTS, "though the loss is finite"))
        stage.step(stage.commit(stage.hold(float(voided))))
    assert [event["passes_voided"] for event in rounds(stage)] == [2, 0]


# ---- validation


Evaluate = Callable[[Sequence[Batch], Callable[[], bool]], float]


def evaluates(stage: Stage, evaluate: Evaluate) -> None:
    stage.replica.evaluate = evaluate  # type: ignore[method-assign]


def test_a_validation_short_of_memory_is_tried_again(new_stage: NewStage) -> None:
    stage = new_stage(validations=1)
    failures = [PassVoided(Cause.MEMORY, "scripted"), PassVoided(Cause.MEMORY, "scripted")]

    def short_of_memory(batches: Sequence[Batch], should_stop: object) -> float:
        if failures:
            raise failures.pop()
        return float(len(batches))

    evaluates(stage, short_of_memory)
    stage.step(stage.commit(stage.hold(1.0)))
    assert kinds(stage) == ["pass-voided", "pass-voided", "round"]
    assert stage.events.events[-1]["validation_loss"] == 5.0


def test_who_is_paused_or_ends_breaks_a_validation_off(new_stage: NewStage) -> None:
    """Rounds are stepped on the host alone meanwhile."""
    stage, validating, ending = new_stage(validations=1), threading.Event(), threading.Event()

    def until_told(batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        validating.set()
        if not ending.is_set():
            stage.worker.gate.pause(Pause.OWNER, "by its owner", 0.0)
        while not should_stop():
            stage.worker._closing.wait(0.01)
        raise PassCancelled("scripted")

    evaluates(stage, until_told)
    stage.worker.gate.pause(Pause.OWNER, "by its owner", 0.0)
    stage.step(stage.commit(stage.hold(1.0)))
    assert not validating.is_set(), "nor begins one"
    stage.worker.gate.resume(Pause.OWNER)
    stage.step(stage.commit(stage.hold(2.0)))
    assert validating.is_set()
    stage.worker.gate.resume(Pause.OWNER)
    validating.clear()
    ending.set()
    stage.apply(stage.commit(stage.hold(3.0)))
    assert validating.wait(WAIT_S)
    stage.close()
    assert len(rounds(stage)) == 3
    assert not any("validation_loss" in event for event in rounds(stage))


def test_validation_is_told_with_the_round_it_was_due_in(new_stage: NewStage) -> None:
    stage, validated = new_stage(validations=1), threading.Event()
    stage.replica.may_step.clear()

    def evaluate(batches: Sequence[Batch], should_stop: object) -> float:
        validated.set()
        return 2.5

    evaluates(stage, evaluate)
    stage.apply(stage.commit(stage.hold(0.25)))
    assert validated.wait(WAIT_S), "evaluation waits for the step by itself, load by load"
    stage.replica.may_step.set()
    stage.settle()
    assert [event["validation_loss"] for event in rounds(stage)] == [2.5]


# ---- ring and step


def test_a_result_that_is_only_on_our_own_disk_is_stepped(stage: Stage) -> None:
    result = stage.hold(1.0)
    commit = stage.commit(result)
    stage.results.save(result, torch.ones(ELEMENTS))
    stage.results.keep(set())
    stage.step(commit)
    assert stage.journal.head.round == 1


def test_a_round_alone_from_ring_to_step(stage: Stage) -> None:
    stage.train()
    stage.executor.carry_out(Freeze(BALLOT))
    frozen = stage.next_event()
    assert isinstance(frozen, Frozen)
    part = Contribution(ME.peer_id, ME.incarnation, frozen.sequences, frozen.loss_sum)
    assert ME.peer_id not in stage.transport.known
    stage.executor.carry_out(StartExchange(stage.start.digest, BALLOT, (part,)))
    assert ME.peer_id in stage.transport.known, "the door keeps places for who is in the ring"
    finished = stage.next_event()
    assert isinstance(finished, ExchangeFinished)
    stage.transport.known.in_ring(())
    stage.step(stage.commit(finished.digest))
    assert ME.peer_id in stage.transport.known, "and for whom the head knows"
    assert torch.equal(stage.replica.arenas["master"], torch.full((ELEMENTS,), -1.0))


def test_a_step_is_written_down_and_told(stage: Stage) -> None:
    stage.train()
    result = stage.hold(0.25)
    commit = stage.commit(result)
    head = stage.start.after(commit.value)
    stepped = stage.step(commit)
    assert stepped == Stepped(head.digest, state_digest(stage.replica.arenas))
    assert stage.journal.head == head
    assert stage.stored() == [result]
    assert stage.blobs.chunk("chain/0", 0, 0) == record_of(commit)
    assert stage.serves(f"result/{result.hex()}")
    assert stage.replica.sequences == 0
    assert not stage.replica.gradients.any()
    assert stage.replica.gradients_tag == stage.deck.dealt[-1] == head.digest
    assert list_snapshots(stage.snapshots) == [], "only every second round"


def test_a_held_result_is_served_before_its_round_is_decided(stage: Stage) -> None:
    """Whatever the worker does; and no file is made of what may never be committed."""
    result, busy = stage.hold(0.25), threading.Event()
    stage.worker.submit(lambda: busy.wait(WAIT_S))
    chunk = bytes(stage.blobs.chunk(f"result/{result.hex()}", 0, 0))
    busy.set()
    assert chunk == torch.full((ELEMENTS,), 0.25).numpy().tobytes()
    assert stage.stored() == []
    stage.step(stage.commit(result))
    assert stage.stored() == [result]
    assert stage.failures.empty()


def test_only_what_was_committed_or_is_waited_for_is_held_and_served(stage: Stage) -> None:
    """Nor is anything written over while somebody may read it."""
    committed, other, unwanted = (stage.hold(value) for value in (0.25, 0.5, 0.75))
    arenas = [weakref.ref(stage.results.get(digest)) for digest in (committed, other)]
    manifest = stage.blobs.manifest(f"result/{committed.hex()}")
    stage.executor.carry_out(KeepResults(frozenset({committed, other})))
    served = [stage.serves(f"result/{each.hex()}") for each in (committed, other, unwanted)]
    assert served == [True, True, False]
    stage.step(stage.commit(committed))
    assert [arena() for arena in arenas] == [None, None]
    assert not stage.serves(f"result/{other.hex()}")
    assert stage.blobs.manifest(f"result/{committed.hex()}") == manifest, "from disk"


def test_what_had_a_part_is_tallied(stage: Stage) -> None:
    stage.train()
    stage.step(stage.commit(stage.hold(0.1), sequences=6))
    stats = stage.executor.stats
    assert (stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped) == (1, 6, 2)
    assert (stats.loss, stats.last_commit_at) == (4.0, 100.0)
    stage.clock.advance(4.0)
    stage.step(stage.commit(stage.hold(0.2), 10, STRANGER))
    assert stats.tokens_per_s == 10 * 16 / 4.0
    assert [event["sequences"] for event in rounds(stage)] == [6, 10]


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


def test_snapshots_are_due_by_the_schedule_and_at_the_end(new_stage: NewStage) -> None:
    stage, names = new_stage(2, 3, 3), []
    for number in range(1, 4):
        names.append(stage.hold(float(number)))
        stage.step(stage.commit(names[-1]))
    assert [snapshot.round for snapshot in list_snapshots(stage.snapshots)] == [3, 2]
    assert stage.stored() == [names[2]], "the older snapshot covers the others"
    assert [event.get("validation_loss") for event in rounds(stage)] == [None, None, 5.0]


# ---- under a step


def test_counting_goes_on_under_the_step(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.train()
    stage.passed.clear()
    stage.replica.may_step.clear()
    head = stage.apply(stage.commit(stage.hold(0.25)))
    assert stage.passed.wait(WAIT_S)
    assert stage.on_worker(lambda: stage.replica.sequences) == 8
    assert stage.posted.empty(), "there is no state to tell of yet"
    stage.replica.may_step.set()
    assert stage.next_event() == Stepped(head.digest, state_digest(stage.replica.arenas))
    stage.settle()
    assert stage.replica.sequences == 8, "they were counted for the new head"
    assert stage.replica.gradients_tag == head.digest


def test_a_freeze_that_follows_the_step_at_once_holds(new_stage: NewStage) -> None:
    """Even if the worker is still busy with what the commit gave it to do."""
    stage = new_stage(validations=1)
    frozen, validating, may_validate = threading.Event(), threading.Event(), threading.Event()

    def go_on(event: Event) -> None:
        if isinstance(event, Stepped):  # as the round's thread would
            stage.executor.carry_out(Thaw())
            stage.executor.carry_out(Freeze(BALLOT))
            frozen.set()

    def evaluate(batches: Sequence[Batch], should_stop: object) -> float:
        validating.set()
        assert may_validate.wait(WAIT_S)
        return 1.0

    stage.on_post = go_on
    evaluates(stage, evaluate)
    stage.train()
    stage.apply(stage.commit(stage.hold(0.25)))
    assert validating.wait(WAIT_S)
    assert frozen.wait(WAIT_S)
    may_validate.set()
    assert isinstance(stage.next_event(), Stepped)
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    assert not stage.on_worker(lambda: stage.worker.has_work)


def test_the_daemon_may_hold_the_worker_before_anything_new_is_counted(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.on_round_begun = lambda: stage.worker.hold("leaving")
    stage.train()
    stage.replica.may_step.clear()
    stage.apply(stage.commit(stage.hold(0.5)))
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    stage.replica.may_step.set()
    assert isinstance(stage.next_event(), Stepped)
    stage.executor.carry_out(Thaw())
    assert stage.on_worker(lambda: stage.replica.sequences) == 0


def test_nothing_is_trained_after_the_last_round(new_stage: NewStage) -> None:
    stage = new_stage(last=1)
    stage.train()
    stage.apply(stage.commit(stage.hold(0.5)))
    stage.settle()
    assert not stage.on_worker(lambda: stage.worker.has_work)
    assert stage.replica.sequences == 0


class HeldSnapshots:
    """Writes a snapshot when the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writing, self.may_write = threading.Event(), threading.Event()
        self._write = storage_module.write_snapshot
        monkeypatch.setattr(storage_module, "write_snapshot", self)

    def __call__(self, *arguments: Any) -> Any:
        self.writing.set()
        assert self.may_write.wait(WAIT_S)
        return self._write(*arguments)


def test_the_next_step_waits_for_a_snapshot_and_counting_does_not(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, snapshots = new_stage(1), HeldSnapshots(monkeypatch)
    stage.train()
    stage.passed.clear()
    first = stage.apply(stage.commit(stage.hold(0.25)))
    stepped = stage.next_event()
    assert isinstance(stepped, Stepped)
    assert snapshots.writing.wait(WAIT_S)
    assert stage.passed.wait(WAIT_S)
    stage.executor.carry_out(Freeze(BALLOT))
    assert stage.next_event() == Frozen(BALLOT, 8, 16.0)
    stage.apply(stage.commit(stage.hold(0.5)))
    assert stage.replica.steps == [1], "the state is still being written"
    snapshots.may_write.set()
    assert isinstance(stage.next_event(), Stepped)
    stage.settle()
    assert stage.replica.steps == [1, 2]
    written = list_snapshots(stage.snapshots)
    assert [snapshot.round for snapshot in written] == [2, 1]
    assert (written[1].head, written[1].state_digest) == (first.digest, stepped.state_digest)


def test_catching_up_waits_for_what_follows_a_step(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, snapshots = new_stage(1), HeldSnapshots(monkeypatch)
    stage.apply(stage.commit(stage.hold(0.25)))
    assert isinstance(stage.next_event(), Stepped)
    assert snapshots.writing.wait(WAIT_S)
    accepted, found = stage.hold(0.5), list[list[Snapshot]]()
    stage.state_sync.on_run = lambda donors, discard: found.append(list_snapshots(stage.snapshots))
    stage.executor.carry_out(BEHIND)
    snapshots.may_write.set()
    assert isinstance(stage.next_event(), CaughtUp)
    assert [snapshot.round for snapshot in found[0]] == [1]
    assert stage.serves(f"result/{accepted.hex()}"), "what is offered is not tidied away"


def test_a_step_that_breaks_off_in_the_background_ends_the_worker(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.replica.step_fails = RuntimeError("the step broke off")
    stage.apply(stage.commit(stage.hold(0.25)))
    assert str(stage.failures.get(timeout=WAIT_S)) == "the step broke off"
    assert stage.posted.empty(), "no state, no digest"
    assert stage.journal.head.round == 1, "a restart finishes it"
    assert stage.stored()


def test_closing_sees_a_step_to_its_end(new_stage: NewStage) -> None:
    stage = new_stage(1)
    stage.apply(stage.commit(stage.hold(0.25)))
    stage.close()
    written = list_snapshots(stage.snapshots)
    assert [snapshot.state_digest for snapshot in written] == [state_digest(stage.replica.arenas)]


# ---- fetching


def test_a_fetch_asks_again_for_what_is_not_there_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def late(digest: bytes) -> Tensor:
        asked.append(digest)
        if len(asked) < 5:
            raise PeerRefused(Reason.NOT_FOUND, "not on the disk yet")
        return torch.ones(ELEMENTS)

    monkeypatch.setattr(round_executor, "PAUSE_S", 0.0)
    stage.state_sync.on_fetch = late
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert stage.next_event() == ResultFetched(b"r" * 32, is_here=True)


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

    monkeypatch.setattr(round_executor, "PATIENCE_S", 0.0)
    stage.state_sync.on_fetch = fail
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert stage.next_event() == ResultFetched(b"r" * 32, is_here=False)
    assert kinds(stage) == ["fetch-failed"]
    assert stage.results.get(b"r" * 32) is None


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (FetchResult(b"r" * 32, ("a",), True), ResultFetched(b"r" * 32, is_here=False)),
        (FetchChain("a"), ChainFetched("a", None)),
        (
            StartExchange(b"p" * 32, BALLOT, (Contribution(ME.peer_id, ME.incarnation, 8, 1.0),)),
            ExchangeFailed(BALLOT, ME.peer_id, "RuntimeError: can't start new thread"),
        ),
    ],
    ids=["fetch", "chain", "ring"],
)
def test_without_a_thread_to_be_had_the_round_hears_of_a_failure(
    stage: Stage, action: Action, outcome: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        stage.executor.carry_out(action)
    assert stage.next_event() == outcome


def test_a_vote_does_not_outwait_its_attempt() -> None:
    """Else the next attempt is for the same value, though its result is nowhere."""
    assert round_executor.HASTE_S < Patience().holding < round_executor.PATIENCE_S


@pytest.mark.parametrize("fault", [None, ConnectionError("gone"), RuntimeError("any")], ids=str)
def test_of_every_chain_that_is_asked_for_the_round_hears(
    stage: Stage, fault: Exception | None
) -> None:
    def served(donor: str) -> Head:
        if fault is not None:
            raise fault
        return stage.start

    stage.state_sync.on_chain = served
    stage.executor.carry_out(FetchChain("a"))
    assert stage.next_event() == ChainFetched("a", None if fault else stage.start)


# ---- catching up, beginning


@pytest.mark.parametrize("wanted", [BEHIND, ODD])
def test_a_failed_catch_up_leaves_us_where_we_were(stage: Stage, wanted: CatchUp) -> None:
    """Of a state that is odd no snapshot is written: it would take the place of a good one."""

    stage.train()
    stage.state_sync.on_run = lambda donors, discard: "lies"
    stage.executor.carry_out(wanted)
    state = state_digest(stage.replica.arenas)
    caught = stage.next_event()
    assert isinstance(caught, CaughtUp)
    assert (caught.head, caught.state_digest) == (stage.start, state)
    assert caught.failed == wanted.donors
    assert kinds(stage) == ["catching-up", "catch-up-failed"]
    assert list_snapshots(stage.snapshots) == []
    assert stage.replica.sequences == 8, "the gradients still belong to this head"


def test_without_any_state_the_digest_is_empty(stage: Stage) -> None:
    def fail(donors: Sequence[str], discard: bool) -> str:
        stage.state_sync.usable = False
        return "nobody there"

    stage.state_sync.on_run = fail
    stage.executor.carry_out(CatchUp((), "no-state", discard=True))
    caught = stage.next_event()
    assert isinstance(caught, CaughtUp)
    assert (caught.head, caught.state_digest) == (stage.start, b"")


def test_a_new_head_starts_a_new_round(stage: Stage) -> None:
    def bring(donors: Sequence[str], discard: bool) -> None:
        commit = stage.commit(b"r" * 32)
        stage.journal.append(commit)
        stage.replica.begin_step(torch.ones(ELEMENTS), 1.0, 1)
        stage.replica.finish_step()

    stage.train()
    stage.state_sync.on_run = bring
    stage.executor.carry_out(BEHIND)
    state = state_digest({**stage.replica.arenas, "master": -torch.ones(ELEMENTS)})
    assert stage.next_event() == CaughtUp(stage.journal.head, state)
    assert stage.journal.head.round == 1
    assert stage.replica.sequences == 0
    assert stage.replica.gradients_tag == stage.journal.head.digest
    assert [snapshot.round for snapshot in list_snapshots(stage.snapshots)] == [1]


def test_what_was_counted_and_missed_the_round_is_dropped(stage: Stage) -> None:
    def bring(donors: Sequence[str], discard: bool) -> None:
        stage.journal.append(stage.commit(b"r" * 32, contributor=STRANGER))

    begun: list[int] = []
    stage.on_round_begun = lambda: begun.append(stage.executor.stats.sequences_dropped)
    stage.train()
    stage.state_sync.on_run = bring
    stage.executor.carry_out(BEHIND)
    stage.next_event()
    assert begun == [8], "who leaves learns of it, and trains no further"
    assert stage.executor.stats.loss == 3.0


def test_a_head_that_stays_takes_nothing_back(stage: Stage) -> None:
    stage.train()
    stage.executor.carry_out(BEHIND)
    stage.next_event()
    assert stage.executor.stats.sequences_dropped == 0
    stage.executor.carry_out(ODD)
    stage.next_event()
    assert stage.executor.stats.sequences_dropped == 8, "they were counted with an odd state"


def test_begin_knows_the_last_loss_and_offers_a_first_snapshot(stage: Stage) -> None:
    head = stage.journal.append(stage.commit(b"r" * 32))
    digest = stage.on_worker(stage.executor.begin)
    assert stage.executor.stats.loss == 3.0
    assert stage.executor.stats.last_here is None
    assert stage.state_sync.restored
    assert digest == state_digest(stage.replica.arenas)
    snapshot = list_snapshots(stage.snapshots)[0]
    assert (snapshot.round, snapshot.state_digest) == (1, digest)
    assert stage.serves(f"state/{head.digest.hex()}")


def test_begin_with_nothing_offers_nothing(stage: Stage) -> None:
    stage.state_sync.usable = False
    assert stage.on_worker(stage.executor.begin) == b""
    assert list_snapshots(stage.snapshots) == []
    assert bytes(stage.blobs.chunk("snapshots", 0, 0)) == b""


def test_closing_ends_a_fetch_that_would_ask_again(stage: Stage) -> None:
    asked = threading.Event()

    def fail(digest: bytes) -> Tensor:
        asked.set()
        raise ConnectionError("gone")

    stage.state_sync.on_fetch = fail
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert asked.wait(WAIT_S)
    stage.executor.close()
    assert stage.next_event() == ResultFetched(b"r" * 32, is_here=False)
