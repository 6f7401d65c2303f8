"""What of a run lies on this peer's disk, and what of it others may fetch.

A restart loads the newest snapshot and replays the results since, as the chain names them. So
results go to disk before the commit that names them (synced after the step: it may take long), and
are dropped once the oldest snapshot covers them. A full disk stops the writing, never the training.

    snapshots          which states are offered: a JSON list of [round, head]
    state/<head>       a state's arenas
    result/<digest>    one averaged result
    chain/<head>/<n>   the commits after round n that lead to that head; all of them without n
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.state.blobs import RESULT_ARENA, Content, plain_bytes
from atom.training.storage.disk import DiskRoom, remove_partial
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.snapshot import (
    KEPT,
    Snapshot,
    list_snapshots,
    load_snapshot,
    prune_snapshots,
    write_snapshot,
)

OFFERS = "snapshots"
"""Name of the list of states."""
SNAPSHOTS, RESULTS, SYNCED, CHAIN = "snapshots", "results", "synced results", "chain"
_NAME = re.compile("(state|result|chain)/([0-9a-f]{64})(?:/([0-9]{1,12}))?")


class RunStorage:
    """Called by one thread at a time: the worker's, or the one after a step; but for `content`,
    which is for any thread."""

    def __init__(
        self, journal: Journal, results: Results, folder: Path, room: DiskRoom, keep: int = KEPT
    ) -> None:
        """`folder`: of the snapshots. `keep`: how many of them, at least one."""
        self.journal = journal
        self.results = results
        self.room = room
        self._folder = folder
        self._keep = keep
        self._offered: tuple[Snapshot, ...] = ()

    def begin(self) -> None:
        """Removes what a crash left half-written, and offers the states that are whole."""
        remove_partial(self.results.folder)
        remove_partial(self._folder)
        self._prune(self._keep)

    def snapshots(self) -> list[Snapshot]:
        """Those on disk, newest first."""
        return list_snapshots(self._folder)

    def leads_to(self, snapshot: Snapshot) -> bool:
        """Whether its state is one of our chain."""
        return self.journal.position(snapshot.head) == snapshot.round

    def content(self, name: str) -> Content | None:
        """What others get under this name: only what never changes. None: nothing."""
        if name == OFFERS:
            return plain_bytes(self._listed())
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        kind, key, since = match[1], bytes.fromhex(match[2]), match[3]
        if kind == "chain":
            records = self.journal.records(int(since or 0), key)
            return None if records is None else plain_bytes(records)
        if kind == "result":
            result = self.results.lend(key)
            return None if result is None else {RESULT_ARENA: result}
        return self._state(key)

    def _listed(self) -> bytes:
        """Only states that a commit vouches for, or the run's manifest: the newest has to wait for
        the round after it."""
        certified = [s for s in self._offered if s.round == 0 or s.round < self.journal.head.round]
        return json.dumps([[s.round, s.head.hex()] for s in certified]).encode()

    def _state(self, head: bytes) -> Content | None:
        for snapshot in self._offered:
            if snapshot.head == head:
                try:
                    return load_snapshot(snapshot)
                except StorageError:
                    return None
        return None

    def replace_chain(self, commits: Sequence[Commit], heads: Sequence[Head]) -> None:
        """Takes over another (verified) chain."""
        self.room.attempt(CHAIN, lambda: self.journal.replace(commits, heads))

    def record(self, commit: Commit) -> None:
        """A commit and its (held) result: on disk before the step, and offered."""
        digest = commit.value.result_digest
        self.room.attempt(RESULTS, lambda: self.results.save(digest))
        self.room.attempt(CHAIN, lambda: self.journal.append(commit))
        if len(self._offered) > self._keep:
            self._prune(self._keep)

    def settle(self, digest: bytes, arenas: Mapping[str, Tensor], due: bool) -> None:
        """After each step: a snapshot if it is due; else the step's result is to survive a power
        cut, too."""
        covered = due and self.snapshot(digest, arenas)
        if not covered and RESULTS not in self.room.paused:
            newest = self.journal.commits[-1].value.result_digest
            self.room.attempt(SYNCED, lambda: self.results.sync(newest))

    def snapshot(self, digest: bytes, arenas: Mapping[str, Tensor]) -> bool:
        """Saves the state of the journal's head and drops the results it covers, but for the
        snapshots before it. Without room, the oldest goes first, but never the only one. Whether
        it is written."""
        needed = sum(arena.nbytes for arena in arenas.values())
        if not self._has_room(needed) and self._keep > 1:
            self._prune(self._keep - 1)
        written = self.room.attempt(SNAPSHOTS, lambda: self._write(digest, arenas, needed))
        if written:
            self._prune(max(self._keep, 2))  # no commit vouches for the newest yet
        return written

    def _write(self, digest: bytes, arenas: Mapping[str, Tensor], needed: int) -> None:
        if not self._has_room(needed):
            raise StorageError(
                f"no room for a snapshot of {needed:,} bytes beside the {self._beside:,} of two"
                f" rounds: {self.room.free_bytes():,} are free",
                "free some disk space; until then a restart has to fetch more from others",
            )
        head = self.journal.head
        write_snapshot(self._folder, head.round, head.digest, digest, arenas)

    def _has_room(self, needed: int) -> bool:
        return self.room.free_bytes() >= needed + self._beside

    @property
    def _beside(self) -> int:
        """Bytes that stay free for the results of two rounds."""
        return 2 * self.results.arena_bytes

    def _prune(self, keep: int) -> None:
        kept = prune_snapshots(self._folder, self.leads_to, keep)
        if kept:
            since = self.journal.commits[kept[-1].round :]
            self.results.prune({commit.value.result_digest for commit in since})
        self._offered = tuple(kept)
