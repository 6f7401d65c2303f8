"""Snapshots and results: whole or not there."""

import errno
import os
from pathlib import Path

import pytest
import torch

from atom.base.errors import StorageError
from atom.swarm.state.arenas import arena_digest
from atom.training.storage.disk import remove_partial
from atom.training.storage.results import Results
from atom.training.storage.run_storage import (
    Snapshot,
    list_snapshots,
    load_snapshot,
    prune_snapshots,
    write_snapshot,
)
from tests.read_only_disk import turn_read_only


def arenas(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full((32,), value) for name in ("master", "exp_avg", "exp_avg_sq")}


def test_snapshot_round_trip(tmp_path: Path) -> None:
    written = write_snapshot(tmp_path, 7, b"h" * 32, b"d" * 32, arenas(1.5))
    assert list_snapshots(tmp_path) == [written]
    loaded = load_snapshot(written)
    assert all(torch.equal(loaded[name], value) for name, value in arenas(1.5).items())


def test_newest_first_and_pruned(tmp_path: Path) -> None:
    for number in (1, 3, 2):
        write_snapshot(tmp_path, number, bytes([number]) * 32, b"d" * 32, arenas(number))
    kept = prune_snapshots(tmp_path, lambda snapshot: True, keep=2)
    assert [snapshot.round for snapshot in kept] == [3, 2]
    assert [snapshot.round for snapshot in list_snapshots(tmp_path)] == [3, 2]


def test_a_discarded_branch_never_outlives_our_own_state(tmp_path: Path) -> None:
    def is_ours(snapshot: Snapshot) -> bool:
        return snapshot.head.startswith(b"our")

    for number in (115, 120):  # of a branch that had got further, with less work
        write_snapshot(tmp_path, number, b"their".ljust(32), b"d" * 32, arenas(number))
    assert prune_snapshots(tmp_path, is_ours) == []
    assert len(list_snapshots(tmp_path)) == 2, "nothing of ours takes their place yet"
    first = write_snapshot(tmp_path, 110, b"our first".ljust(32), b"d" * 32, arenas(110))
    assert prune_snapshots(tmp_path, is_ours) == [first]
    assert [snapshot.round for snapshot in list_snapshots(tmp_path)] == [120, 110]
    second = write_snapshot(tmp_path, 112, b"our second".ljust(32), b"d" * 32, arenas(112))
    assert prune_snapshots(tmp_path, is_ours) == [second, first]
    assert list_snapshots(tmp_path) == [second, first]


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    good = write_snapshot(tmp_path, 1, b"a" * 32, b"d" * 32, arenas(1))
    bad = write_snapshot(tmp_path, 2, b"b" * 32, b"d" * 32, arenas(2))
    bad.path.write_bytes(bad.path.read_bytes()[:100])
    assert list_snapshots(tmp_path) == [good]


def test_no_room_is_said_and_nothing_half_written(tmp_path: Path) -> None:
    occupied = tmp_path / "snapshots"
    occupied.mkdir()
    target = occupied / f"round-{1:09d}-{(b'a' * 32).hex()[:16]}.partial"
    target.mkdir()  # the file cannot be written there, whoever runs this test
    with pytest.raises(StorageError, match="cannot write"):
        write_snapshot(occupied, 1, b"a" * 32, b"d" * 32, arenas(1))
    assert list_snapshots(occupied) == []


def test_what_a_disk_that_became_read_only_keeps_is_no_trouble(tmp_path: Path) -> None:
    """Nobody may remove a file there. A folder in its place is not removed as one either."""
    results = Results(tmp_path, 32)
    stored = tmp_path / f"{b'r'.hex() * 32}.safetensors"
    stored.mkdir()
    (tmp_path / "left.partial").mkdir()
    remove_partial(tmp_path)
    results.prune(set())
    assert stored.exists()
    for number in (1, 2, 3):
        write_snapshot(tmp_path, number, bytes([number]) * 32, b"d" * 32, arenas(number))
    with pytest.MonkeyPatch.context() as patch:
        turn_read_only(patch)
        kept = prune_snapshots(tmp_path, lambda snapshot: True, keep=2)
    assert [snapshot.round for snapshot in kept] == [3, 2]
    assert [snapshot.round for snapshot in list_snapshots(tmp_path)] == [3, 2, 1]


def test_a_disk_without_room_for_a_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path / "results", 32)
    results.hold(b"r" * 32, results.buffer())

    def full(path: Path, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageError, match="the disk is full"):
        results.save(b"r" * 32)
    with pytest.raises(StorageError, match="the disk is full"):
        write_snapshot(tmp_path / "snapshots", 1, b"a" * 32, b"d" * 32, arenas(1))


def test_results_in_memory_then_on_disk(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    buffer = results.buffer()
    buffer.fill_(2.0)
    name = arena_digest(buffer)
    results.hold(name, buffer)
    results.save(name)
    results.release()
    stored = results.get(name)
    assert stored is not None
    assert torch.equal(stored, torch.full((32,), 2.0))
    assert results.path(name).exists()
    assert results.buffer() is buffer, "arenas are used again"


def test_what_was_lent_is_not_written_over(tmp_path: Path) -> None:
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
    results.hold(b"r" * 32, torch.ones(32))
    results.save(b"r" * 32)
    results.release()
    lent = results.lend(b"r" * 32)
    results.prune(set())
    assert lent is not None
    assert torch.equal(lent, torch.ones(32))
    assert results.lend(b"r" * 32) is None


def test_what_nobody_waits_for_is_not_held(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    for letter in (b"a", b"b"):
        results.hold(letter * 32, results.buffer())
    results.keep({b"b" * 32})
    assert results.get(b"a" * 32) is None
    assert results.get(b"b" * 32) is not None


def test_unknown_and_damaged_results_are_not_there(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    assert results.get(b"u" * 32) is None
    name = arena_digest(torch.ones(32))
    results.hold(name, torch.ones(32))
    results.save(name)
    results.release()
    assert results.get(name) is not None
    assert Results(tmp_path, 64).get(name) is None, "of a model of another size"
    whole = results.path(name).read_bytes()
    for damaged in (b"garbage", whole[:-40], whole[:-1] + b"\x00", b""):
        results.path(name).write_bytes(damaged)
        assert results.get(name) is None


def test_prune_keeps_only_what_is_named(tmp_path: Path) -> None:
    results = Results(tmp_path, 32)
    for letter in (b"a", b"b", b"c"):
        results.hold(letter * 32, torch.zeros(32))
        results.save(letter * 32)
    results.prune({b"b" * 32})
    assert [path.stem for path in tmp_path.glob("*.safetensors")] == [b"b".hex() * 32]
