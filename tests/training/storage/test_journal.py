"""The chain on disk: appended, verified from genesis, cut where a crash left it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.training.storage.journal import Journal
from tests.swarm.chain_samples import beginning
from tests.training.small_history import PEERS, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a journal of three rounds."""
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


TAKES: dict[str, Callable[[Journal], object]] = {
    "a commit": lambda journal: journal.append(run().commits[3]),
    "another chain": lambda journal: journal.replace(
        [*run().commits[:3], run().branch(3)],
        [*run().heads[:4], run().heads[3].after(run().branch(3).value)],
    ),
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_the_disk_does_not_take_counts_and_is_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, take: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(path, run().heads[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StorageError, match="the disk is full"):
            TAKES[take](journal)
    assert journal.head.round == 4
    if take == "a commit":
        journal.append(run().commits[4])
    else:
        journal.replace(journal.commits, journal.heads)
    assert Journal(path, run().heads[0]).heads == journal.heads
