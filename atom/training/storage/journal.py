"""The chain of commits on disk: appended before a step is taken, read back after a restart.

An unfinished last record (power loss while appending) is written over; anything else that does not
read back is refused, never guessed at.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from atom.base.disk_words import why_not_written
from atom.base.errors import PeerRefused, StorageError
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import parse_commits, record_of, verified_heads


class Journal:
    """The commits since genesis, in memory and in `path`. One writer; for any thread to read: a
    list only grows, and another chain is another list."""

    def __init__(self, path: Path, genesis: Head) -> None:
        """Reads what is there. Raises: StorageError if it is damaged or of another run."""
        self._path = path
        self.genesis = genesis
        raw = path.read_bytes() if path.exists() else b""
        try:
            self.commits, self._size_bytes = parse_commits(raw)
            self.heads = verified_heads(genesis, self.commits)
        except PeerRefused as problem:
            raise StorageError(
                f"{path} is damaged, or does not continue this run's genesis ({problem})",
                "move that file aside: the peer then fetches chain and state from the swarm",
            ) from problem
        self._written = len(self.commits)
        """So many commits are in the file; 0 also where it holds another chain."""

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
        self._written = 0
        self.commits, self.heads = list(commits), list(heads)
        self._write_rest()

    def _write_rest(self) -> None:
        """What is not on disk yet; an earlier attempt may have left half a record."""
        raw = b"".join(map(record_of, self.commits[self._written :]))
        start = self._size_bytes if self._written else 0
        place = self._path if start else self._path.with_suffix(".new")
        try:
            _write_at(place, start, raw)
            os.replace(place, self._path)
        except OSError as problem:
            raise StorageError(
                f"cannot write {self._path}: {why_not_written(problem)}",
                "free some disk space, check the state directory, then start again",
            ) from problem
        self._size_bytes, self._written = start + len(raw), len(self.commits)


def _write_at(path: Path, start: int, raw: bytes) -> None:
    """Writes and syncs, in place of all from `start` on. Raises: OSError."""
    with path.open("r+b" if start else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
