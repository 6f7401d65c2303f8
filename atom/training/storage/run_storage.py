"""What of a run lies on this peer's disk, and what of it others may fetch.

A restart replays: the newest snapshot, the results since, the chain that names them. So results
go to disk before the commit that names them (synced after the step, beside the next passes: it may
take long), and are dropped once the oldest snapshot covers them. A full disk stops the writing,
never the training (`disk_room.py`).
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import torch

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Commit, Head
from atom.training.storage.disk_room import DiskRoom
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.shelf import Shelf
from atom.training.storage.snapshot import (
    KEPT,
    Snapshot,
    list_snapshots,
    prune_snapshots,
    tidy_snapshots,
    write_snapshot,
)

LENT_ROUNDS = 64
"""How far a snapshot that is being fetched may fall behind before it goes all the same."""
SNAPSHOTS, RESULTS, SYNCED, CHAIN = "snapshots", "results", "synced results", "chain"


class RunStorage:
    """Called by one thread at a time: the worker's, or the aftermath of a step; but for
    `offer_result` and `keep_results`."""

    def __init__(
        self,
        journal: Journal,
        results: Results,
        shelf: Shelf,
        folder: Path,
        room: DiskRoom,
        keep: int = KEPT,
    ) -> None:
        """`folder`: of the snapshots. `keep`: how many of them, at least one."""
        self.journal = journal
        self.results = results
        self._shelf = shelf
        self._folder = folder
        self._keep = keep
        self._owed = False
        self._too_large_for = 0
        self.room = room

    def begin(self) -> None:
        """Removes what a crash left half-written, and offers the states that are whole."""
        self.results.tidy()
        tidy_snapshots(self._folder)
        self._prune(self._keep)

    def snapshots(self) -> list[Snapshot]:
        """Those on disk, newest first."""
        return list_snapshots(self._folder)

    def replace_chain(self, commits: Sequence[Commit], heads: Sequence[Head]) -> None:
        """Takes over another (verified) chain."""
        self.room.attempt(CHAIN, lambda: self.journal.replace(commits, heads))

    def record(self, commit: Commit) -> None:
        """A commit and its (held) result: on disk before the step, and offered."""
        digest = commit.value.result_digest
        self.room.attempt(RESULTS, lambda: self.results.save(digest))
        self._shelf.announce_results()
        self.room.attempt(CHAIN, lambda: self.journal.append(commit))

    def offer_result(self, digest: bytes) -> None:
        """Serves a result that is held here, before anybody knows whether it will be committed.
        From any thread."""
        self._shelf.offer_result(digest)

    def keep_results(self, digests: Set[bytes]) -> None:
        """Holds no others in memory any more, nor serves them from there. From any thread."""
        self.results.keep(digests)
        self._shelf.withdraw_results(but_for=digests)

    def announce_chain(self) -> None:
        """After each change of the journal."""
        self._shelf.announce_chain()

    def settle(self, digest: bytes, arenas: Mapping[str, torch.Tensor], due: bool) -> None:
        """After each step: a snapshot if it is due, or was due when the disk had no room; else the
        step's result is to survive a power cut, too."""
        needed = _size_bytes(arenas)
        again = self._owed and needed != self._too_large_for and self._has_room(needed)
        covered = (due or again) and self.snapshot(digest, arenas)
        if not covered and RESULTS not in self.room.paused:
            newest = self.journal.commits[-1].value.result_digest
            self.room.attempt(SYNCED, lambda: self.results.sync(newest))

    def snapshot(self, digest: bytes, arenas: Mapping[str, torch.Tensor]) -> bool:
        """Saves the state of the journal's head and drops the results it covers, but for the
        snapshots before it. Without room, the oldest goes first, but never the only one. Whether
        it is written."""
        needed = _size_bytes(arenas)
        if not self._has_room(needed) and self._keep > 1:
            self._prune(max(self._keep - 1, 1), spare_lent=False)
        written = self.room.attempt(SNAPSHOTS, lambda: self._write(digest, arenas, needed))
        self._owed = not written
        if written:
            self._prune(self._keep)
        return written

    def _write(self, digest: bytes, arenas: Mapping[str, torch.Tensor], needed: int) -> None:
        head = self.journal.head
        if not self._has_room(needed):
            raise StorageError(
                f"no room for a snapshot of {needed:,} bytes beside the {self._beside:,} of two"
                f" rounds: {self.room.free_bytes():,} are free",
                "free some disk space; until then a restart has to fetch more from others",
            )
        self._too_large_for = needed  # until it is written: a quota does not show in what is free
        write_snapshot(self._folder, head.round, head.digest, digest, dict(arenas))
        self._too_large_for = 0

    def _has_room(self, needed: int) -> bool:
        return self.room.free_bytes() >= needed + self._beside

    @property
    def _beside(self) -> int:
        """Bytes that stay free for the results of two rounds."""
        return 2 * self.results.arena_bytes

    def _prune(self, keep: int, spare_lent: bool = True) -> None:
        """A state that somebody is fetching stays, or with many snapshots nobody would ever have
        fetched a whole one; but not for ever, since the results after it stay, too."""
        heads = self._shelf.heads_in_use() if spare_lent else set()
        earliest = self.journal.head.round - LENT_ROUNDS

        def is_lent(snapshot: Snapshot) -> bool:
            return snapshot.head in heads and snapshot.round >= earliest

        kept = prune_snapshots(self._folder, self.journal.leads_to, keep, is_lent)
        if kept:
            oldest = kept[-1].round
            self.results.prune(
                {c.value.result_digest for c in self.journal.commits if c.value.round > oldest}
            )
        self._shelf.announce_snapshots(kept)


def _size_bytes(arenas: Mapping[str, torch.Tensor]) -> int:
    return sum(arena.nbytes for arena in arenas.values())
