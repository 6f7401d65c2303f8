"""Files are whole or not there, and bounded in number; a full disk stops the writing, never the
training."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.errors import StorageError
from atom.base.events import EventList
from atom.swarm.state.arenas import arena_digest
from atom.training.storage.disk import DiskRoom, remove_partial
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.run_storage import (
    OFFERS,
    RunStorage,
    list_snapshots,
    write_snapshot,
)
from tests.read_only_disk import turn_read_only
from tests.training.executor_stage import Stage, kinds
from tests.training.worker_scene import ELEMENTS

STATE_BYTES = 3 * 4 * ELEMENTS
RESULTS_BYTES = 2 * 4 * ELEMENTS


class SmallDisk(DiskRoom):
    """Has as much room as the test says."""

    free = 1 << 30

    def free_bytes(self) -> int:
        return self.free


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, room=SmallDisk)
    yield stage
    stage.close()
    assert stage.failures.empty(), stage.failures.get()


def disk(stage: Stage) -> SmallDisk:
    assert isinstance(stage.room, SmallDisk)
    return stage.room


def steps(stage: Stage, count: int) -> None:
    for _ in range(count):
        stage.step(stage.commit(stage.hold(stage.journal.head.round + 1.0)))


def rounds(stage: Stage) -> list[int]:
    return [snapshot.round for snapshot in list_snapshots(stage.snapshots)]


def offered(stage: Stage) -> list[int]:
    """Rounds of the states that others hear of."""
    raw = bytes(stage.blobs.chunk(OFFERS, 0, 0))
    heads = [head.digest for head in stage.journal.heads]
    return [heads.index(raw[at : at + 32]) for at in range(0, len(raw), 32)]


def keeping_one(stage: Stage) -> RunStorage:
    return RunStorage(stage.journal, stage.results, stage.snapshots, stage.room, keep=1)


def of(stage: Stage, kind: str) -> list[str]:
    return [event["what"] for event in stage.events.events if event["event"] == kind]


def test_as_many_as_asked_for_and_the_oldest_goes_first(stage: Stage) -> None:
    """With one, the one before it stays until a commit vouches for the newest."""
    steps(stage, 7)
    assert rounds(stage) == [6, 4]
    assert len(stage.stored()) == 3, "since the older one"
    stage.storage = one = keeping_one(stage)
    one.begin()
    assert rounds(stage) == [6]
    assert len(stage.stored()) == 1
    for found in ([8, 6], [8], [10, 8]):
        commit = stage.commit(stage.hold(9.0 + stage.journal.head.round))
        one.record(commit)
        one.settle(b"d" * 32, stage.replica.arenas, stage.journal.head.round % 2 == 0)
        assert rounds(stage) == found


def test_a_discarded_branch_never_outlives_our_own_state(stage: Stage) -> None:
    steps(stage, 1)
    for number in (115, 120):  # of a branch that had got further, with less work
        write_snapshot(stage.snapshots, number, b"x" * 32, b"d" * 32, stage.replica.arenas)
    stage.storage.begin()
    assert rounds(stage) == [120, 115], "nothing of ours takes their place yet"
    assert offered(stage) == []
    steps(stage, 1)
    assert rounds(stage) == [120, 2]
    steps(stage, 2)
    assert rounds(stage) == [4, 2]
    journal = stage.journal
    stage.storage.replace_chain(journal.commits, journal.heads, 3)
    assert offered(stage) == [2], "the other is on a branch that we have left"


def test_only_states_that_a_commit_vouches_for_are_offered(stage: Stage) -> None:
    stage.storage.snapshot(b"d" * 32, stage.replica.arenas)
    assert offered(stage) == [0], "the run's manifest vouches for it"
    steps(stage, 2)
    assert offered(stage) == [0]
    steps(stage, 1)
    assert offered(stage) == [2, 0]
    assert stage.serves(f"state/{stage.journal.heads[2].digest.hex()}")


def test_under_names_that_it_does_not_have_nothing_is_served(stage: Stage) -> None:
    steps(stage, 3)
    head = stage.journal.head.digest.hex()
    odd = ["chain/-1", "chain/x", f"chain/{head}", f"state/{head}", f"result/{head}"]
    for name in (*odd, f"result/{'0' * 63}", f"state/{head}/1", "", "../x"):
        assert not stage.serves(name), name


def test_without_room_snapshots_pause_and_training_goes_on(stage: Stage) -> None:
    steps(stage, 2)
    disk(stage).free = STATE_BYTES + RESULTS_BYTES - 1
    steps(stage, 4)
    assert stage.journal.head.round == 6
    assert rounds(stage) == [2], "the only good one stays"
    assert of(stage, "disk-full") == ["snapshots"], "said once"
    assert "snapshots" in stage.room.paused
    disk(stage).free += 1
    steps(stage, 2)
    assert rounds(stage) == [8, 2], "when the next one is due"
    assert of(stage, "disk-room") == ["snapshots"]
    assert stage.room.paused == {}


def test_the_oldest_makes_room_for_the_newest(stage: Stage) -> None:
    steps(stage, 4)
    assert rounds(stage) == [4, 2]

    class Tight(SmallDisk):
        """Full, until there is but one snapshot."""

        def free_bytes(self) -> int:
            return 1 << 30 if len(rounds(stage)) < 2 else 0

    stage.storage.room = Tight(stage.snapshots, stage.events)
    steps(stage, 2)
    assert rounds(stage) == [6, 4]
    assert of(stage, "disk-full") == []


def test_results_that_no_snapshot_covers_survive_a_power_cut(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def noted(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        real(file)

    monkeypatch.setattr(os, "fsync", noted)
    steps(stage, 3)
    results = [
        commit.value.result_digest.hex() + ".safetensors" for commit in stage.journal.commits
    ]
    assert [name for name in synced if name in results] == [results[0], results[2]]


def test_a_disk_that_fails_while_it_syncs_stops_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(digest: bytes) -> None:
        raise StorageError("an I/O error", "look at the disk")

    monkeypatch.setattr(stage.results, "sync", failing)
    steps(stage, 1)
    assert of(stage, "disk-full") == ["synced results"]
    steps(stage, 2)
    assert stage.journal.head.round == 3
    assert of(stage, "disk-full") == ["synced results"], "once"
    assert of(stage, "disk-room") == []


def test_a_disk_that_turns_read_only_stops_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(stage, 4)
    with monkeypatch.context() as patch:
        turn_read_only(patch)
        steps(stage, 2)
        keeping_one(stage).begin()
        held = stage.hold(9.0)
    assert stage.journal.head.round == 6
    assert stage.serves(f"result/{held.hex()}"), "from memory"
    assert of(stage, "disk-full") == ["results", "chain", "snapshots"]
    assert {each.rpartition(": ")[2] for each in stage.room.paused.values()} == {
        "Read-only file system"
    }
    assert rounds(stage) == [4, 2], "and they are still there"
    steps(stage, 2)
    assert stage.room.paused == {}
    assert Journal.open(stage.folder / "chain.bin", stage.start).head == stage.journal.head
    assert "round" in kinds(stage)


def test_the_person_at_the_terminal_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    room = DiskRoom(tmp_path / "gone", EventList(), said.append)
    assert room.free_bytes() == 0

    def full() -> None:
        raise StorageError("the disk is full", "free some disk space")

    assert not room.attempt("snapshots", full)
    assert not room.attempt("snapshots", full)
    assert room.attempt("results", lambda: None)
    assert room.attempt("snapshots", lambda: None)
    assert said == [
        "the disk is full; training goes on without (free some disk space)",
        "the disk has room again: snapshots written",
    ]


# ---- results


def saved(results: Results, value: float) -> bytes:
    result = results.buffer().fill_(value)
    name = arena_digest(result)
    results.hold(name, result)
    results.save(name)
    return name


def test_arenas_are_used_again_but_those_that_were_lent(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    mine, read = results.buffer(), results.buffer()
    results.hold(b"m" * 32, mine)
    results.hold(b"r" * 32, read)
    assert results.lend(b"r" * 32) is read
    assert results.lend(b"x" * 32) is None
    results.release()
    assert results.buffer() is mine
    assert results.buffer() is not read


def test_a_stored_result_is_lent_even_while_its_file_goes(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    name = saved(results, 2.0)
    results.release()
    lent = results.lend(name)
    results.prune(set())
    assert lent is not None
    assert torch.equal(lent, torch.full((32,), 2.0))
    assert results.lend(name) is None


def test_damaged_results_are_not_there(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    name = saved(results, 2.0)
    results.release()
    assert results.lend(name) is not None
    assert Results(tmp_path, 64).get(name) is None, "of a model of another size"
    whole = results.path(name).read_bytes()
    for damaged in (b"garbage", whole[:-40], whole[:-1] + b"\x01", b""):
        results.path(name).write_bytes(damaged)
        assert results.get(name) is None
    assert results.lend(name) is None, "a power cut leaves empty files"


def test_a_folder_in_the_place_of_a_file_is_said_and_left_alone(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    name = saved(results, 2.0)
    results.path(name).unlink()
    results.path(name).mkdir()
    (tmp_path / "left.partial").mkdir()
    remove_partial(tmp_path)
    results.prune(set())
    with pytest.raises(StorageError, match="cannot write"):
        results.save(name)
    assert {path.name for path in tmp_path.iterdir()} == {results.path(name).name, "left.partial"}
