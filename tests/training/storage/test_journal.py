"""The chain on disk: appended, verified from genesis, cut where a crash left it."""

import errno
import os
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Commit, Head, genesis
from atom.swarm.chain.commit_chain import verified_heads
from atom.swarm.identity import Identity
from atom.training.storage.journal import Journal
from tests.swarm.chain_samples import a_commit, beginning, voter_of

ME = Identity.create()
GENESIS = beginning(ME)


def commit_on(head: Head, sequences: int = 8) -> Commit:
    return a_commit(head, {ME: sequences}, [ME])


def chain(length: int) -> list[Commit]:
    commits, head = [], GENESIS
    for _ in range(length):
        commits.append(commit_on(head))
        head = head.after(commits[-1].value)
    return commits


def written(path: Path, length: int) -> Journal:
    journal = Journal.open(path, GENESIS)
    for commit in chain(length):
        journal.append(commit)
    return journal


def test_reads_back_what_was_appended(tmp_path: Path) -> None:
    journal = written(tmp_path / "chain.bin", 5)
    again = Journal.open(tmp_path / "chain.bin", GENESIS)
    assert again.commits == journal.commits
    assert again.head == journal.head
    assert again.head.round == 5
    assert again.head.work == 40


@pytest.mark.parametrize("lost", [1, 3, 50])
def test_an_unfinished_last_record_is_cut_off(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "chain.bin"
    journal = written(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    again = Journal.open(path, GENESIS)
    assert again.commits == journal.commits[:2]
    again.append(journal.commits[2])
    assert path.read_bytes() == whole


def test_another_runs_chain_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "chain.bin", 2)
    other = genesis(b"other manifest".ljust(32), b"s" * 32, voter_of(ME))
    with pytest.raises(StorageError, match="genesis"):
        Journal.open(tmp_path / "chain.bin", other)


@pytest.mark.parametrize("place", [0, 4, 5, 40, 200])
def test_damage_inside_is_refused_not_guessed_at(tmp_path: Path, place: int) -> None:
    path = tmp_path / "chain.bin"
    written(path, 3)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x81
    path.write_bytes(bytes(raw))
    with pytest.raises(StorageError, match=r"chain\.bin"):
        Journal.open(path, GENESIS)
    assert path.read_bytes() == raw, "whoever looks into it finds what we found"


def test_replace_takes_over_another_chain(tmp_path: Path) -> None:
    journal = written(tmp_path / "chain.bin", 2)
    other = [commit_on(GENESIS, sequences=99)]
    journal.replace(other, verified_heads(GENESIS, other))
    assert Journal.open(tmp_path / "chain.bin", GENESIS).commits == other


def test_what_the_disk_did_not_take_counts_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, commits = tmp_path / "chain.bin", chain(3)
    journal = written(path, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            journal.append(commits[1])
    assert journal.head.round == 2
    journal.append(commits[2])
    assert Journal.open(path, GENESIS).commits == commits


def test_another_chain_that_the_disk_did_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "chain.bin", [commit_on(GENESIS, sequences=99)]
    journal = written(path, 2)

    def full(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError):
            journal.replace(other, verified_heads(GENESIS, other))
    other.append(commit_on(journal.head))
    journal.append(other[1])
    assert Journal.open(path, GENESIS).commits == other
