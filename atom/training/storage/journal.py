"""The chain of commits on disk: appended before a step is taken, replayed after a restart.

An unfinished last record (power loss while appending) is cut off; anything else that does not read
back is refused, never guessed at.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from atom.base.disk_words import why_not_written
from atom.base.errors import PeerRefused, StorageError
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import (
    LENGTH_BYTES,
    parse_commits,
    record_of,
    verified_heads,
)
from atom.training.storage.snapshot import Snapshot


class Journal:
    """The commits since genesis, in memory and in `path`. One writer."""

    def __init__(self, path: Path, genesis: Head) -> None:
        self._path = path
        self.genesis = genesis
        self.commits: list[Commit] = []
        self.heads: list[Head] = [genesis]
        self._size_bytes = 0
        self._written = 0
        self._ends: list[int] = []
        """Where each commit's record ends in the file."""
        self._is_another = False
        """The file holds a chain that is not ours any more, or part of one."""

    @classmethod
    def open(cls, path: Path, genesis: Head) -> "Journal":
        """Reads what is there. Raises: StorageError if it is damaged or of another run."""
        journal = cls(path, genesis)
        raw = path.read_bytes() if path.exists() else b""
        try:
            commits, end = parse_commits(raw)
            journal.heads = verified_heads(genesis, commits)
        except PeerRefused as problem:
            raise StorageError(
                f"{path} is damaged, or does not continue this run's genesis ({problem})",
                "move that file aside: the peer then fetches chain and state from the swarm",
            ) from problem
        if end < len(raw):
            os.truncate(path, end)
        journal.commits = commits
        journal._size_bytes, journal._written = end, len(commits)
        journal._ends = _record_ends(raw[:end])
        return journal

    @property
    def head(self) -> Head:
        return self.heads[-1]

    def append(self, commit: Commit) -> Head:
        """Makes `commit` durable and returns the head after it. It must extend our head.

        Raises: StorageError if the disk does not take it. It counts all the same, and goes to disk
        with the next one: a restart that does not find it fetches it from others.
        """
        assert commit.value.parent == self.head.digest
        parse_commits(record_of(commit))  # nothing is written that would not be read back
        self.commits.append(commit)
        self.heads.append(self.head.after(commit.value))
        self._write_rest()
        return self.head

    def replace(self, commits: Sequence[Commit], heads: Sequence[Head]) -> None:
        """Takes over another (verified) chain: aside, synced, renamed. Raises: as `append`."""
        self._is_another = True
        self.commits, self.heads = list(commits), list(heads)
        self._write_rest()

    def _write_rest(self) -> None:
        try:
            if self._is_another:
                self._write_all()
            else:
                self._write_on()
        except OSError as problem:
            raise _unwritable(self._path, problem) from problem

    def _write_on(self) -> None:
        """Appends what is not on disk yet; an earlier attempt may have left half a record."""
        with self._path.open("r+b" if self._written else "wb") as file:
            file.truncate(self._size_bytes)
            file.seek(self._size_bytes)
            ends = _write_records(file, self.commits[self._written :])
            self._ends += ends
            self._size_bytes, self._written = file.tell(), len(self.commits)

    def _write_all(self) -> None:
        aside = self._path.with_suffix(".new")
        with aside.open("wb") as file:
            ends = _write_records(file, self.commits)
        os.replace(aside, self._path)
        self._ends = ends
        self._size_bytes, self._written = (ends or [0])[-1], len(self.commits)
        self._is_another = False

    def position(self, head_digest: bytes) -> int | None:
        """How many commits lead to that head on this chain; None if it is not on it."""
        for index in range(len(self.heads) - 1, -1, -1):
            if self.heads[index].digest == head_digest:
                return index
        return None

    def shared_rounds(self, heads: Sequence[Head]) -> int:
        """How many rounds this chain has in common with another one of the run."""
        shared = min(len(heads), len(self.heads)) - 1
        while heads[shared].digest != self.heads[shared].digest:
            shared -= 1
        return shared

    def leads_to(self, snapshot: Snapshot) -> bool:
        """Whether its state is one of this chain."""
        return self.position(snapshot.head) == snapshot.round

    def verified(self, commits: Sequence[Commit]) -> list[Head]:
        """`verified_heads` of another chain; what it shares with ours is not checked again.

        Raises: PeerRefused as `verified_heads`.
        """
        shared = 0
        for ours, theirs in zip(self.commits, commits, strict=False):
            if ours != theirs:
                break
            shared += 1
        known = self.heads[: shared + 1]
        return known[:-1] + verified_heads(known[-1], commits[shared:])

    @property
    def file(self) -> tuple[Path, int] | None:
        """Where the whole chain lies as peers exchange it, and how many bytes it has; None if it is
        not all written.

        The file only grows, or is replaced as a whole: who has it open keeps what it offered.
        """
        whole = self._written == len(self.commits) and not self._is_another
        return (self._path, self._size_bytes) if whole and self.commits else None

    def file_between(self, since: int, head: bytes) -> tuple[Path, int, int] | None:
        """Where the commits after round `since`, up to that head, lie: file, first byte, count.
        None if they are not all there. From any thread."""
        until = self.position(head)
        if until is None or not 0 <= since <= until <= len(self._ends) or self._is_another:
            return None
        start = self._ends[since - 1] if since else 0
        end = self._ends[until - 1] if until else 0
        return self._path, start, end - start


def _record_ends(raw: bytes) -> list[int]:
    ends, end = [], 0
    while end < len(raw):
        end += LENGTH_BYTES + int.from_bytes(raw[end : end + LENGTH_BYTES], "big")
        ends.append(end)
    return ends


def _write_records(file: IO[bytes], commits: Sequence[Commit]) -> list[int]:
    """Writes and syncs; where each ends. Raises: OSError."""
    ends = []
    for commit in commits:
        file.write(record_of(commit))
        ends.append(file.tell())
    file.flush()
    os.fsync(file.fileno())
    return ends


def _unwritable(path: Path, problem: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {why_not_written(problem)}",
        "free some disk space, check the state directory, then start again",
    )
