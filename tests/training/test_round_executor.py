"""What a round asks of a replica, done on a real worker's thread with a replica of 64 numbers."""

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swap.engine import PassCancelled
from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import (
    Contribution,
)
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training.replica.pacing import SwarmCount
from atom.training.replica.worker import Batch, Pause
from atom.training.round import Patience
from atom.training.round.events import (
    CatchUp,
    CaughtUp,
    Event,
    Fetched,
    FetchFailed,
    FetchResult,
    Freeze,
    Frozen,
    KeepResults,
    RingFinished,
    StartRing,
    Stepped,
    Thaw,
)
from atom.training.round_executor import Schedule
from atom.training.state_sync import state_sync
from atom.training.state_sync.state_sync import CatchUpFailed
from atom.training.storage.snapshot import list_snapshots
from tests.training.executor_stage import BALLOT, ELEMENTS, ME, WAIT_S, Stage, kinds

BEHIND = CatchUp(("a",), "behind")
ODD = CatchUp(("a",), "state-mismatch", discard=True)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    before = set(threading.enumerate())
    stage = Stage(tmp_path)
    yield stage
    stage.close()
    assert set(threading.enumerate()) <= before
    assert stage.failures.empty(), stage.failures.get()


# ---- counting


def test_a_freeze_is_answered_at_the_end_of_the_pass(stage: Stage) -> None:
    stage.replica.may_end.clear()
    stage.worker.release("starting")
    assert stage.replica.in_pass.wait(WAIT_S)
    stage.executor.carry_out(Freeze(BALLOT))
    assert stage.posted.empty(), "in the middle of a pass nothing is counted yet"
    stage.replica.may_end.set()
    assert stage.next_event() == Frozen(BALLOT, 8, 16.0)
    assert stage.executor.uncommitted_sequences == 8
    assert stage.executor.own_sequences(stage.replica.gradients_tag) == 8
    assert stage.executor.own_sequences(b"the next head") == 0, "another round's"


def test_frozen_until_thawed(stage: Stage) -> None:
    stage.executor.carry_out(Freeze(BALLOT))
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    stage.worker.release("starting")
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
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


def test_the_swarms_progress_reaches_the_worker(stage: Stage) -> None:
    swarm = SwarmCount(others_sequences=100, peers=3, seen_at=1.0)
    stage.executor.tell_progress(swarm)
    assert stage.worker.swarm == swarm


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
    rounds = [event for event in stage.events.events if event["event"] == "round"]
    assert [event["passes_voided"] for event in rounds] == [2, 0]


def test_a_validation_short_of_memory_is_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Schedule(2, 1, 5, 4, 16))
    failures = [PassVoided(Cause.MEMORY, "scripted"), PassVoided(Cause.MEMORY, "scripted")]
    evaluate = stage.replica.evaluate

    def short_of_memory(batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        if failures:
            raise failures.pop()
        return evaluate(batches, should_stop)

    stage.replica.evaluate = short_of_memory  # type: ignore[method-assign]
    stage.step(stage.commit(stage.hold(1.0)))
    stage.close()
    assert kinds(stage) == ["pass-voided", "pass-voided", "round"]
    assert stage.events.events[-1]["validation_loss"] == 5.0
    assert stage.failures.empty()


def test_who_is_paused_validates_nothing(tmp_path: Path) -> None:
    """Nor goes on with what is under way: rounds are stepped on the host alone."""
    stage = Stage(tmp_path, Schedule(2, 1, 5, 4, 16))
    stage.worker.gate.pause(Pause.OWNER, "by its owner", 0.0)
    stage.step(stage.commit(stage.hold(1.0)))
    stage.worker.gate.resume(Pause.OWNER)

    def broken_off(batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        stage.worker.gate.pause(Pause.OWNER, "by its owner", 0.0)
        assert should_stop()
        raise PassCancelled("scripted")

    stage.replica.evaluate = broken_off  # type: ignore[method-assign]
    stage.step(stage.commit(stage.hold(1.0)))
    stage.close()
    rounds = [event for event in stage.events.events if event["event"] == "round"]
    assert len(rounds) == 2
    assert not any("validation_loss" in event for event in rounds)
    assert stage.failures.empty()


def test_a_validation_ends_with_the_daemon(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Schedule(2, 1, 5, 4, 16))
    validating = threading.Event()

    def long(batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        validating.set()
        for _ in range(int(WAIT_S / 0.01)):
            if should_stop():
                break
            stage.worker._closing.wait(0.01)
        assert should_stop()
        raise PassCancelled("scripted")

    stage.replica.evaluate = long  # type: ignore[method-assign]
    stage.apply(stage.commit(stage.hold(1.0)))
    assert validating.wait(WAIT_S)
    stage.close()
    assert stage.failures.empty()


# ---- ring and step


def test_a_result_that_is_only_on_our_own_disk_is_stepped(stage: Stage) -> None:
    result = stage.hold(1.0)
    commit = stage.commit(result)
    stage.results.save(result)
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
    stage.executor.carry_out(StartRing(stage.start.digest, BALLOT, (part,)))
    assert ME.peer_id in stage.transport.known, "the door keeps places for who is in the ring"
    finished = stage.next_event()
    assert isinstance(finished, RingFinished)
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
    assert stage.serves(f"chain/{head.digest.hex()}")
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


def test_what_was_served_from_memory_is_not_kept_there(stage: Stage) -> None:
    """Nor is it written over while somebody may read it."""
    committed, other = stage.hold(0.25), stage.hold(0.5)
    arenas = [weakref.ref(stage.results.get(digest)) for digest in (committed, other)]
    manifests = [stage.blobs.manifest(f"result/{each.hex()}") for each in (committed, other)]
    stage.step(stage.commit(committed))
    stage.settle()
    assert [arena() for arena in arenas] == [None, None]
    assert not stage.serves(f"result/{other.hex()}")
    assert stage.blobs.manifest(f"result/{committed.hex()}") == manifests[0], "from disk"


def test_what_nobody_waits_for_is_neither_held_nor_served(stage: Stage) -> None:
    accepted, other = stage.hold(0.25), stage.hold(0.5)
    stage.executor.carry_out(KeepResults(frozenset({accepted})))
    assert stage.serves(f"result/{accepted.hex()}")
    assert not stage.serves(f"result/{other.hex()}")
    stage.step(stage.commit(accepted))
    assert stage.failures.empty()


def test_what_had_a_part_is_tallied(stage: Stage) -> None:
    stage.train()
    stage.step(stage.commit(stage.hold(0.1), sequences=6))
    stats = stage.executor.stats
    assert (stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped) == (1, 6, 2)
    assert (stats.loss, stats.last_commit_at) == (4.0, 100.0)
    stage.clock.advance(4.0)
    other = Identity.create().peer_id
    stage.step(stage.commit(stage.hold(0.2), sequences=10, contributor=other))
    assert (stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped) == (1, 6, 2)
    assert stats.tokens_per_s == 10 * 16 / 4.0
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
    assert stage.stored() == [names[2]], "the older snapshot covers the others"
    validated = [event.get("validation_loss") for event in stage.events.events]
    assert validated == [None, None, 5.0]
    assert stage.failures.empty()


# ---- fetching


def test_the_round_hears_of_a_fetched_result(stage: Stage) -> None:
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert stage.next_event() == Fetched(b"r" * 32)


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

    monkeypatch.setattr(state_sync, "PATIENCE_S", 0.0)
    stage.state_sync.on_fetch = fail
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert stage.next_event() == FetchFailed(b"r" * 32)
    assert kinds(stage) == ["fetch-failed"]
    assert stage.results.get(b"r" * 32) is None


def test_a_vote_does_not_outwait_its_attempt() -> None:
    """Else the next attempt is for the same value, though its result is nowhere."""
    assert state_sync.HASTE_S < Patience().holding < state_sync.PATIENCE_S


def test_a_fetch_asks_again_for_what_is_not_there_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def late(digest: bytes) -> Tensor:
        asked.append(digest)
        if len(asked) < 5:
            raise PeerRefused(Reason.NOT_FOUND, "not on the disk yet")
        return torch.ones(ELEMENTS)

    monkeypatch.setattr(state_sync, "PAUSE_S", 0.0)
    stage.state_sync.on_fetch = late
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert isinstance(stage.next_event(), Fetched)


# ---- catching up, beginning


@pytest.mark.parametrize("wanted", [BEHIND, ODD])
def test_a_failed_catch_up_leaves_us_where_we_were(stage: Stage, wanted: CatchUp) -> None:
    """Of a state that is odd no snapshot is written: it would take the place of a good one."""

    def fail(donors: Mapping[str, bytes], discard: bool) -> None:
        raise CatchUpFailed("lies", ("a", "b"))

    stage.train()
    stage.state_sync.on_run = fail
    stage.executor.catch_up({"a": b"h" * 32}, wanted)
    state = state_digest(stage.replica.arenas)
    caught = stage.next_event()
    assert isinstance(caught, CaughtUp)
    assert (caught.head, caught.state_digest) == (stage.start, state)
    assert caught.shunned == ("a", "b")
    assert kinds(stage) == ["catching-up", "catch-up-failed"]
    assert list_snapshots(stage.snapshots) == []
    assert stage.replica.sequences == 8, "the gradients still belong to this head"


def test_without_any_state_the_digest_is_empty(stage: Stage) -> None:
    def fail(donors: Mapping[str, bytes], discard: bool) -> None:
        stage.state_sync.usable = False
        raise CatchUpFailed("nobody there")

    stage.state_sync.on_run = fail
    stage.executor.catch_up({}, CatchUp((), "no-state", discard=True))
    assert stage.next_event() == CaughtUp(stage.start, b"", ())


def test_a_new_head_starts_a_new_round(stage: Stage) -> None:
    def bring(donors: Mapping[str, bytes], discard: bool) -> None:
        commit = stage.commit(b"r" * 32)
        stage.journal.append(commit)
        stage.replica.begin_step(torch.ones(ELEMENTS), 1.0, 1)
        stage.replica.finish_step()

    stage.train()
    stage.state_sync.on_run = bring
    stage.executor.catch_up({"a": b"h" * 32}, BEHIND)
    state = state_digest({**stage.replica.arenas, "master": -torch.ones(ELEMENTS)})
    assert stage.next_event() == CaughtUp(stage.journal.head, state)
    assert stage.journal.head.round == 1
    assert stage.replica.sequences == 0
    assert stage.replica.gradients_tag == stage.journal.head.digest
    assert [snapshot.round for snapshot in list_snapshots(stage.snapshots)] == [1]


def test_what_was_counted_and_missed_the_round_is_dropped(stage: Stage) -> None:
    def bring(donors: Mapping[str, bytes], discard: bool) -> None:
        stage.journal.append(stage.commit(b"r" * 32, contributor=Identity.create().peer_id))

    begun: list[int] = []
    stage.on_round_begun = lambda: begun.append(stage.executor.stats.sequences_dropped)
    stage.train()
    stage.state_sync.on_run = bring
    stage.executor.catch_up({"a": b"h" * 32}, BEHIND)
    stage.next_event()
    assert begun == [8], "who leaves learns of it, and trains no further"
    assert stage.executor.stats.loss == 3.0


def test_another_branch_takes_back_what_was_committed_on_ours(stage: Stage) -> None:
    stage.train()
    stage.step(stage.commit(stage.hold(0.1)))
    stats = stage.executor.stats
    assert (stats.sequences_committed, stats.sequences_dropped) == (8, 0)

    def bring(donors: Mapping[str, bytes], discard: bool) -> None:
        stage.journal.replace([], [stage.start])
        other = Identity.create().peer_id
        for _ in range(2):
            stage.journal.append(stage.commit(b"r" * 32, contributor=other))

    stage.state_sync.on_run = bring
    stage.executor.catch_up({"a": b"h" * 32}, BEHIND)
    stage.next_event()
    assert (stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped) == (0, 0, 8)


def test_a_head_that_stays_takes_nothing_back(stage: Stage) -> None:
    stage.train()
    stage.executor.catch_up({"a": b"h" * 32}, BEHIND)
    stage.next_event()
    assert stage.executor.stats.sequences_dropped == 0
    stage.executor.catch_up({"a": b"h" * 32}, ODD)
    stage.next_event()
    assert stage.executor.stats.sequences_dropped == 8, "they were counted with an odd state"


def test_after_a_restart_the_last_loss_is_known(stage: Stage) -> None:
    stage.journal.append(stage.commit(b"r" * 32))
    stage.on_worker(stage.executor.begin)
    assert stage.executor.stats.loss == 3.0
    assert stage.executor.stats.last_here is None


def test_begin_offers_a_first_snapshot(stage: Stage) -> None:
    digest = stage.on_worker(stage.executor.begin)
    assert stage.state_sync.restored
    assert digest == state_digest(stage.replica.arenas)
    snapshot = list_snapshots(stage.snapshots)[0]
    assert (snapshot.round, snapshot.state_digest) == (0, digest)
    assert stage.serves(f"state/{stage.start.digest.hex()}")


def test_begin_with_nothing_offers_nothing(stage: Stage) -> None:
    stage.state_sync.usable = False
    assert stage.on_worker(stage.executor.begin) == b""
    assert list_snapshots(stage.snapshots) == []
    assert bytes(stage.blobs.chunk("snapshots", 0, 0)) == b"[]"


def test_closing_ends_a_fetch_that_would_ask_again(stage: Stage) -> None:
    asked = threading.Event()

    def fail(digest: bytes) -> Tensor:
        asked.set()
        raise ConnectionError("gone")

    stage.state_sync.on_fetch = fail
    stage.executor.carry_out(FetchResult(b"r" * 32, ("a",), True))
    assert asked.wait(WAIT_S)
    stage.executor.close()
    assert stage.next_event() == FetchFailed(b"r" * 32)
