"""The chain on disk: appended, verified from genesis, cut where a crash left it."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Commit, genesis
from atom.swarm.chain.commit_chain import verified_heads
from atom.swarm.identity import Identity
from atom.training.storage.journal import Journal
from tests.swarm.chain_samples import a_commit, beginning, voter_of

ME = Identity.create()
GENESIS = beginning(ME)


def chain(length: int, sequences: int = 8) -> list[Commit]:
    commits, head = list[Commit](), GENESIS
    for _ in range(length):
        commits.append(a_commit(head, {ME: sequences}, [ME]))
        head = head.after(commits[-1].value)
    return commits


def written(path: Path, length: int) -> Journal:
    journal = Journal(path, GENESIS)
    for commit in chain(length):
        journal.append(commit)
    return journal


@pytest.mark.parametrize("lost", [1, 3, 50])
def test_an_unfinished_last_record_is_cut_off(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "chain.bin"
    journal = written(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    again = Journal(path, GENESIS)
    assert again.commits == journal.commits[:2]
    assert again.heads == journal.heads[:3]
    again.append(journal.commits[2])
    assert path.read_bytes() == whole


def test_another_runs_chain_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "chain.bin", 2)
    other = genesis(b"other manifest".ljust(32), b"s" * 32, voter_of(ME))
    with pytest.raises(StorageError, match="genesis"):
        Journal(tmp_path / "chain.bin", other)


@pytest.mark.parametrize("place", [0, 4, 5, 40, 200])
def test_damage_inside_is_refused_not_guessed_at(tmp_path: Path, place: int) -> None:
    path = tmp_path / "chain.bin"
    written(path, 3)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x81
    path.write_bytes(bytes(raw))
    with pytest.raises(StorageError, match=r"chain\.bin"):
        Journal(path, GENESIS)
    assert path.read_bytes() == raw, "whoever looks into it finds what we found"


@pytest.mark.parametrize(
    ("call", "another"), [("fsync", False), ("fsync", True), ("replace", True)]
)
def test_what_the_disk_does_not_take_counts_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, another: bool
) -> None:
    """A commit, or another chain."""
    path, commits = tmp_path / "chain.bin", chain(3, 99 if another else 8)
    journal, heads = written(path, 1), verified_heads(GENESIS, commits)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        take = partial(journal.replace, commits[:2], heads[:3])
        with pytest.raises(StorageError, match="the disk is full"):
            take() if another else journal.append(commits[1])
    assert journal.head.round == 2
    journal.append(commits[2])
    assert Journal(path, GENESIS).commits == commits
