"""The next round is counted while a step ends and its digest is taken: in a right order, whatever
arrives meanwhile."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from atom.swarm.state.arenas import state_digest
from atom.training.replica.worker import Batch
from atom.training.round.events import (
    CatchUp,
    CaughtUp,
    Event,
    Freeze,
    Frozen,
    Stepped,
    Thaw,
)
from atom.training.round_executor import Schedule
from atom.training.storage import run_storage as storage_module
from atom.training.storage.snapshot import Snapshot, list_snapshots
from tests.training.executor_stage import BALLOT, WAIT_S, Stage

BEHIND = CatchUp(("a",), "behind")

NewStage = Callable[..., Stage]


@pytest.fixture
def new_stage(tmp_path: Path) -> Iterator[NewStage]:
    """Makes the stage, closes it at the end, and finds no thread left."""
    before, stages = set(threading.enumerate()), list[Stage]()

    def make(*schedule: Any, last_round: int | None = None) -> Stage:
        terms = Schedule(*(schedule or (2, None)), 5, 4, 16, last_round)
        stages.append(Stage(tmp_path, terms))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
        assert stage.failures.empty(), stage.failures.get()
    assert set(threading.enumerate()) <= before


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
    stage = new_stage(2, 1)
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

    stage.on_post, stage.replica.evaluate = go_on, evaluate  # type: ignore[method-assign]
    stage.train()
    stage.apply(stage.commit(stage.hold(0.25)))
    assert validating.wait(WAIT_S)
    assert frozen.wait(WAIT_S)
    may_validate.set()
    assert isinstance(stage.next_event(), Stepped)
    assert stage.next_event() == Frozen(BALLOT, 0, 0.0)
    assert stage.on_worker(lambda: stage.replica.sequences) == 0
    assert stage.on_worker(lambda: stage.worker.gate.held)


def test_validation_is_told_with_the_round_it_was_due_in(new_stage: NewStage) -> None:
    stage = new_stage(2, 1)
    stage.replica.may_step.clear()
    validated = threading.Event()

    def evaluate(batches: Sequence[Batch], should_stop: object) -> float:
        validated.set()
        return 2.5

    stage.replica.evaluate = evaluate  # type: ignore[method-assign]
    stage.apply(stage.commit(stage.hold(0.25)))
    assert validated.wait(WAIT_S), "evaluation waits for the step by itself, load by load"
    stage.replica.may_step.set()
    stage.settle()
    assert [e["validation_loss"] for e in stage.events.events if e["event"] == "round"] == [2.5]


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
    stage = new_stage(last_round=1)
    stage.train()
    stage.apply(stage.commit(stage.hold(0.5)))
    stage.settle()
    assert stage.on_worker(lambda: stage.worker.gate.held)
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
    stage, snapshots = new_stage(1, None), HeldSnapshots(monkeypatch)
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


def test_what_is_offered_is_not_tidied_away(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, snapshots = new_stage(1, None), HeldSnapshots(monkeypatch)
    stage.apply(stage.commit(stage.hold(0.25)))
    assert isinstance(stage.next_event(), Stepped)
    assert snapshots.writing.wait(WAIT_S)
    accepted = stage.hold(0.5)
    snapshots.may_write.set()
    stage.settle()
    assert stage.serves(f"result/{accepted.hex()}")


def test_catching_up_waits_for_what_follows_a_step(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, snapshots = new_stage(1, None), HeldSnapshots(monkeypatch)
    stage.apply(stage.commit(stage.hold(0.25)))
    assert isinstance(stage.next_event(), Stepped)
    assert snapshots.writing.wait(WAIT_S)
    found: list[list[Snapshot]] = []
    stage.state_sync.on_run = lambda donors, discard: found.append(list_snapshots(stage.snapshots))
    stage.executor.catch_up({"a": b"h" * 32}, BEHIND)
    snapshots.may_write.set()
    assert isinstance(stage.next_event(), CaughtUp)
    assert [snapshot.round for snapshot in found[0]] == [1]


def test_a_step_that_breaks_off_in_the_background_ends_the_worker(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.replica.step_fails = RuntimeError("the step broke off")
    stage.apply(stage.commit(stage.hold(0.25)))
    assert str(stage.failures.get(timeout=WAIT_S)) == "the step broke off"
    assert stage.posted.empty(), "no state, no digest"
    assert stage.journal.head.round == 1, "a restart finishes it"
    assert stage.stored()


def test_closing_sees_a_step_to_its_end(new_stage: NewStage) -> None:
    stage = new_stage(1, None)
    stage.apply(stage.commit(stage.hold(0.25)))
    stage.close()
    written = list_snapshots(stage.snapshots)
    assert [snapshot.state_digest for snapshot in written] == [state_digest(stage.replica.arenas)]
