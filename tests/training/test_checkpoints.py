"""Weights of every n-th round and of the best one: kept over restarts and branches, never at the
cost of a round, and with only the trained weights."""

import math

import pytest
import torch

from atom.config import peer_file
from atom.swarm.state.arenas import state_digest
from atom.training.storage.checkpoints import BEST, BY_ROUND, Checkpoints, best_of
from atom.training.storage.disk import PARTIAL_SUFFIX
from atom.training.storage.run_storage import list_snapshots, write_snapshot
from tests.training.conftest import NewStage
from tests.training.executor_stage import Stage
from tests.training.worker_scene import ELEMENTS

WEIGHT_BYTES, STATE_BYTES = 4 * ELEMENTS, 12 * ELEMENTS


@pytest.fixture
def stage(new_stage: NewStage) -> Stage:
    return new_stage(snapshots=1000)


def keeping(
    stage: Stage, every: int | None = None, keep: int = 5, best: bool = False
) -> Checkpoints:
    asked = peer_file.Checkpoints(every_rounds=every, keep=keep, best=best)
    return Checkpoints(stage.folder / "checkpoints", stage.storage, asked)


def play(stage: Stage, kept: Checkpoints, losses: list[float | None]) -> None:
    """A round for each, with that validation loss."""
    for loss in losses:
        stage.step(stage.commit(stage.hold(stage.journal.head.round + 1.0)))
        kept.stepped(stage.replica.state_arenas(), loss)


def shown(kept: Checkpoints) -> list[tuple[int, float | None]]:
    return [(each.round, each.validation_loss) for each in kept.listed()]


def test_the_newest_of_every_n_rounds_are_kept_with_the_weights_alone(stage: Stage) -> None:
    kept = keeping(stage, every=2, keep=2)
    play(stage, kept, [None, 9.0, None, None, None, 7.0, None])
    assert shown(kept) == [(6, 7.0), (4, None)]
    newest = kept.listed()[0]
    assert set(newest.load()) == {"master"}
    assert newest.path.stat().st_size < WEIGHT_BYTES + 1000
    weights = newest.checked(None)["master"]
    assert torch.equal(weights, torch.full((ELEMENTS,), -21.0)), "round n took n away"


def test_the_best_stays_whatever_comes_and_whoever_starts_again(stage: Stage) -> None:
    play(stage, keeping(stage, best=True), [math.nan, None, 3.0])
    again = keeping(stage, best=True)
    play(stage, again, [3.0, 4.0, math.nan, -math.inf])
    assert shown(again) == [(3, 3.0)], "of equal ones the first"
    both = keeping(stage, every=4, keep=1, best=True)
    play(stage, both, [2.0, 2.5])
    assert shown(both) == [(8, 2.0)], "the newest of them is the best as well"
    play(stage, both, [None, None, 2.25])
    assert shown(both) == [(12, 2.25), (8, 2.0)], "too old by its round, and still the best"
    play(stage, both, [1.0])
    assert shown(both) == [(13, 1.0), (12, 2.25)]


def test_a_round_of_another_pace_is_not_taken_away(stage: Stage) -> None:
    play(stage, keeping(stage, every=2), [None] * 4)
    slower = keeping(stage, every=3)
    play(stage, slower, [None] * 2)
    assert shown(slower) == [(6, None), (4, None), (2, None)]


def test_what_a_discarded_branch_or_a_crash_left_goes_with_the_next_one(stage: Stage) -> None:
    kept, folder = keeping(stage, every=1, best=True), stage.folder / "checkpoints"
    arenas = {"master": torch.zeros(ELEMENTS)}
    write_snapshot(folder, 90, b"x" * 32, state_digest(arenas), arenas, "best", 0.5)
    (folder / f"round-7{PARTIAL_SUFFIX}").write_bytes(b"half")
    (folder / "notes.txt").write_text("the owner's")
    assert best_of(kept.listed()) is None, "another chain's"
    play(stage, kept, [2.0])
    assert shown(kept) == [(1, 2.0)]
    assert len(list_snapshots(folder)) == 1
    assert sorted(path.suffix for path in folder.iterdir()) == [".safetensors", ".txt"]


def test_without_room_for_it_beside_the_next_snapshot_none_is_kept(stage: Stage) -> None:
    kept, disk = keeping(stage, every=1), stage.room
    enough = WEIGHT_BYTES + STATE_BYTES + stage.results.usual_bytes
    disk.free = lambda: enough - 1
    play(stage, kept, [None, None])
    assert shown(kept) == []
    (told,) = stage.told("disk-full")
    assert told["what"] == "checkpoints"
    assert "the run goes on" in told["hint"]
    assert stage.journal.head.round == 2
    disk.free = lambda: enough
    play(stage, kept, [None])
    assert shown(kept) == [(3, None)]
    assert [event["what"] for event in stage.told("disk-room")] == ["checkpoints"]


def test_rounds_keep_theirs_by_the_clock_and_by_the_validation(new_stage: NewStage) -> None:
    """Checkpoints are written as in a daemon: after each step, in the background."""
    stage = new_stage(peer_file.Checkpoints(every_rounds=2, best=True), validations=3)
    for number in range(1, 6):
        stage.step(stage.commit(stage.hold(float(number))))
    assert shown(stage.checkpoints) == [(4, None), (3, 5.0), (2, None)]
    names = [each.path.name.partition("-")[0] for each in stage.checkpoints.listed()]
    assert names == [BY_ROUND, BEST, BY_ROUND]
