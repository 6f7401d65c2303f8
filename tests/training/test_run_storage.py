"""Files are whole or not there, and bounded in number; a full disk stops the writing, never the
training."""

import errno
import os
from pathlib import Path

import pytest
import torch

from atom.base.errors import StorageError
from atom.config.peer_file import Checkpoints
from atom.swarm.chain.commit_chain import Chain
from atom.swarm.exchange.codec import EXACT
from atom.swarm.state.arenas import state_digest
from atom.training.storage.disk import DiskRoom
from atom.training.storage.results import Results
from atom.training.storage.run_storage import (
    OFFERS,
    Journal,
    RunStorage,
    write_snapshot,
)
from tests.event_list import EventList
from tests.read_only_disk import turn_read_only
from tests.swarm.chain_samples import beginning
from tests.swarm.means import encoded
from tests.training.conftest import NewStage
from tests.training.executor_stage import Stage, kinds, snapshots
from tests.training.small_history import PEERS, run
from tests.training.worker_scene import ELEMENTS

STATE_BYTES = 3 * 4 * ELEMENTS
RESULT_BYTES = 4 * ELEMENTS


def steps(stage: Stage, count: int) -> None:
    for _ in range(count):
        stage.step(stage.commit(stage.hold(stage.journal.head.round + 1.0)))


def offered(stage: Stage) -> list[int]:
    """Rounds of the states that others hear of."""
    raw = bytes(stage.blobs.chunk(OFFERS, 0, 0))
    heads = [head.digest for head in stage.journal.heads]
    return [heads.index(raw[at : at + 32]) for at in range(0, len(raw), 32)]


def keeping_one(stage: Stage) -> RunStorage:
    return RunStorage(stage.journal, stage.results, stage.snapshots, stage.room, keep=1, given={})


def of(stage: Stage, kind: str) -> list[str]:
    return [event["what"] for event in stage.events.events if event["event"] == kind]


def test_as_many_as_asked_for_are_kept_and_the_results_since_the_oldest(stage: Stage) -> None:
    steps(stage, 7)
    assert snapshots(stage) == [6, 4]
    assert len(stage.stored()) == 3
    one = keeping_one(stage)
    one.begin()
    assert len(stage.stored()) == 3
    one.snapshot(b"d" * 32, stage.replica.arenas)
    assert snapshots(stage) == [7]
    assert stage.stored() == []


def test_a_discarded_branch_never_outlives_our_own_state(stage: Stage) -> None:
    steps(stage, 1)
    for number in (115, 120):  # of a branch that had got further, with less work
        write_snapshot(stage.snapshots, number, b"x" * 32, b"d" * 32, stage.replica.arenas)
    stage.storage.begin()
    assert snapshots(stage) == [120, 115], "nothing of ours takes their place yet"
    assert offered(stage) == []
    steps(stage, 1)
    assert snapshots(stage) == [120, 2]
    steps(stage, 2)
    assert snapshots(stage) == [4, 2]
    journal = stage.journal
    stage.storage.replace_chain(journal.until(3))
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
    stage.room.free = lambda: STATE_BYTES + RESULT_BYTES - 1
    steps(stage, 4)
    assert stage.journal.head.round == 6
    assert snapshots(stage) == [2], "the only good one stays"
    assert of(stage, "disk-full") == ["snapshots"], "said once"
    assert "snapshots" in stage.room.paused
    stage.room.free = lambda: STATE_BYTES + RESULT_BYTES
    steps(stage, 2)
    assert snapshots(stage) == [8, 2], "when the next one is due"
    assert of(stage, "disk-room") == ["snapshots"]
    assert stage.room.paused == {}


def test_the_oldest_makes_room_for_the_newest(stage: Stage) -> None:
    steps(stage, 4)
    assert snapshots(stage) == [4, 2]
    stage.room.free = lambda: 1 << 30 if len(snapshots(stage)) < 2 else 0
    steps(stage, 2)
    assert snapshots(stage) == [6, 4]
    assert of(stage, "disk-full") == []


def test_what_is_for_joiners_makes_room_for_the_next_result(stage: Stage) -> None:
    steps(stage, 5)
    assert (snapshots(stage), len(stage.stored())) == ([4, 2], 3)
    stage.room.free = lambda: RESULT_BYTES if len(snapshots(stage)) < 2 else RESULT_BYTES - 1
    steps(stage, 1)
    assert (snapshots(stage), len(stage.stored())) == ([4], 2), "what a restart needs stays"
    assert of(stage, "disk-full") == ["snapshots"]


def test_a_disk_that_turns_read_only_stops_nobody(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = new_stage(Checkpoints(every_rounds=1))
    steps(stage, 4)
    with monkeypatch.context() as patch:
        turn_read_only(patch)
        steps(stage, 2)
        keeping_one(stage).begin()
        held = stage.hold(9.0)
    assert stage.journal.head.round == 6
    assert stage.serves(f"result/{held.hex()}"), "from memory"
    assert of(stage, "disk-full") == ["results", "chain", "checkpoints", "snapshots"]
    assert {each.rpartition(": ")[2] for each in stage.room.paused.values()} == {
        "Read-only file system"
    }
    assert snapshots(stage) == [4, 2], "and they are still there"
    steps(stage, 2)
    assert stage.room.paused == {}
    assert Journal(stage.folder / "chain.bin", stage.start).head == stage.journal.head
    assert "round" in kinds(stage)


def test_the_person_at_the_terminal_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    room = DiskRoom(tmp_path / "gone", EventList(), said.append)
    assert room.free_bytes() == 0

    def full() -> None:
        raise StorageError("the disk is full", "free some disk space")

    done = [room.attempt("snapshots", write) for write in (full, full, list, list)]
    assert done == [False, False, True, True]
    assert len(said) == 2
    assert "the disk is full" in said[0]
    assert "free some disk space" in said[0]


# ---- results

TWOS = encoded(torch.full((32,), 2.0))
NAME = state_digest(TWOS.arenas)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """One of them is stored."""
    results = Results(tmp_path, 32, EXACT)
    results.hold(NAME, TWOS)
    results.save(NAME)
    results.keep(set())
    return results


def test_a_stored_result_is_read_even_while_its_file_goes(results: Results) -> None:
    found = results.unchecked(NAME)
    results.prune(set())
    assert found is not None
    assert torch.equal(found.numbers(EXACT, 32)[:], torch.full((32,), 2.0))
    assert results.unchecked(NAME) is None


def test_damaged_results_are_not_there(results: Results) -> None:
    path = results.path(NAME)
    assert results.get(NAME) is not None
    whole = path.read_bytes()
    for damaged in (b"garbage", whole[:-40], whole[:-1] + b"\x01", b""):
        path.write_bytes(damaged)
        assert results.get(NAME) is None
    assert results.unchecked(NAME) is None, "a power cut leaves empty files"


# ---- the chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a journal of three rounds."""
    path = tmp_path / "chain.bin"
    journal = Journal(path, run().heads[0])
    for commit in run().commits[:3]:
        assert journal.append(commit) == journal.head
    return path


@pytest.mark.parametrize("lost", [1, 3, 50])
def test_an_unfinished_last_record_is_cut_off(path: Path, lost: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    again = Journal(path, run().heads[0])
    assert again.commits == run().commits[:2]
    assert again.heads == run().heads[:3]
    again.append(run().commits[2])
    assert path.read_bytes() == whole


def test_another_runs_chain_is_refused(path: Path) -> None:
    with pytest.raises(StorageError, match="genesis"):
        Journal(path, beginning(PEERS[1]))


@pytest.mark.parametrize("place", [0, 4, 5, 40, 200])
def test_damage_inside_is_refused_not_guessed_at(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x81
    path.write_bytes(bytes(raw))
    with pytest.raises(StorageError, match=r"chain\.bin"):
        Journal(path, run().heads[0])
    assert path.read_bytes() == raw, "whoever looks into it finds what we found"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_the_disk_does_not_take_counts_and_is_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal, branch = Journal(path, run().heads[0]), run().branch(3)
    for take in (
        lambda: journal.append(run().commits[3]),
        lambda: journal.replace(
            Chain(
                [*run().commits[:3], branch], [*run().heads[:4], run().heads[3].after(branch.value)]
            )
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StorageError, match="the disk is full"):
                take()
        assert journal.head.round == 4
    journal.replace(journal)
    assert Journal(path, run().heads[0]).heads == journal.heads
