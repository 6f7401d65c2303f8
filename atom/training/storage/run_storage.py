"""Files of a run on this peer's disk, and the part of them that other peers may fetch.

A snapshot is the whole state at one head in one file: a mapping of names to flat tensors. A restart
loads the newest snapshot and replays the later results that the chain names. Results are therefore
written before the commit that names them, and deleted once the oldest snapshot covers them. Older
snapshots serve joiners that are fetching a state; they are deleted first if disk space is short. A
full disk stops the writing, never the training.

    snapshots          list of the offered states: their heads, 32 bytes each
    frozen             the parameters that no step changes, the same in all states
    state/<head>       a state's arenas
    result/<digest>    one averaged result
    chain/<n>          the commits after round n, as many as fit in a page

If power was lost while the chain was appended to, the unfinished last record is overwritten. Any
other unreadable record is an error, never repaired by guessing.
"""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from atom.base.errors import PeerRefused, StorageError
from atom.base.files import remove_leftover, rename_durably, why_not_written
from atom.swap.host_store import FROZEN
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import (
    Chain,
    EncodedRecords,
    parse_commits,
    record_of,
    verified_heads,
)
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content, plain_bytes
from atom.swarm.state.piece_store import PieceStore
from atom.training.storage.disk import PARTIAL_SUFFIX, DiskRoom, read_tensors, write_tensors
from atom.training.storage.results import Results

OFFERS = "snapshots"
"""Name under which other peers request the list of states."""
SNAPSHOTS, RESULTS, CHAIN = "snapshots", "results", "chain"
OWN, STILL = "own.safetensors", "frozen.safetensors"
_NAME = re.compile("(?:(state|result)/([0-9a-f]{64})|chain/([0-9]{1,12}))")


class Journal(Chain):
    """Our chain, in memory and in a file.

    One thread writes; any thread may read, because a list only grows, and another chain gets a new
    list.
    """

    def __init__(self, path: Path, genesis: Head) -> None:
        """Read the file, if any.

        Raises:
            StorageError: The file is damaged, or of another run.
        """
        self._path = path
        self.genesis = genesis
        raw = path.read_bytes() if path.exists() else b""
        try:
            commits, self._size_bytes = parse_commits(raw)
            super().__init__(commits, verified_heads(genesis, commits))
        except PeerRefused as problem:
            raise StorageError(
                f"{path} is damaged, or does not continue this run's genesis ({problem})",
                "move that file aside: the peer then fetches chain and state from the swarm",
            ) from problem
        self._written = len(self.commits)
        """Number of commits in the file; 0 also if the file holds another chain."""

    def append(self, commit: Commit) -> Head:
        """Append a commit that extends our head, write it durably, and return the new head.

        Raises:
            StorageError: The commit cannot be written. It is kept in memory and written with the
                next one; after a restart without it, this peer fetches it from other peers.
        """
        assert commit.value.parent == self.head.digest
        parse_commits(record_of(commit))  # never write a record that could not be read back
        self.commits.append(commit)
        self.heads.append(self.head.after(commit.value))
        self._write_rest()
        return self.head

    def replace(self, chain: Chain) -> None:
        """Replace the chain by a copy of another chain: write, sync, rename.

        Raises:
            StorageError: As `append`.
        """
        self._written = 0
        self.commits, self.heads = [*chain.commits], [*chain.heads]
        self._write_rest()

    def keep_proof(self, commits: Sequence[Commit]) -> bool:
        """Write two commits with one parent to a file next to the journal: proof of a double vote.

        Returns:
            False if there is such a file already, or it cannot be written.
        """
        path = self._path.with_name("double-vote.bin")
        if path.exists():
            return False
        try:
            _write_at(path, 0, b"".join(map(record_of, commits)))
        except OSError:
            remove_leftover(path)
            return False
        return True

    def _write_rest(self) -> None:
        """Write the commits that are not on disk yet, over any half-written record."""
        raw = b"".join(map(record_of, self.commits[self._written :]))
        start = self._size_bytes if self._written else 0
        place = self._path if start else self._path.with_suffix(".new")
        try:
            _write_at(place, start, raw)
            rename_durably(place, self._path)
        except OSError as problem:
            raise StorageError(
                f"cannot write {self._path}: {why_not_written(problem)}",
                "free some disk space, check the state directory, then start again",
            ) from problem
        self._size_bytes, self._written = start + len(raw), len(self.commits)


def _write_at(path: Path, start: int, raw: bytes) -> None:
    """Replace the file's content from `start` on, and sync it. Raises: OSError."""
    with path.open("r+b" if start else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Snapshot:
    """File of a state, with the metadata in its header."""

    path: Path
    round: int
    head: bytes
    state_digest: bytes
    validation_loss: float | None = None
    """Mean validation loss of the weights; None: the file has none."""

    def load(self) -> dict[str, Tensor]:
        """Return the arenas by name, unverified.

        Raises:
            StorageError: The file is unreadable.
        """
        return read_tensors(self.path)

    def checked(self, certified: bytes | None) -> dict[str, Tensor]:
        """Return the arenas by name after checking their digest.

        Args:
            certified: Digest of the state by the chain; None: the chain has none yet, so only the
                digest in the file is checked.

        Raises:
            StorageError: The file is unreadable, or its content has another digest.
        """
        arenas = self.load()
        if {state_digest(arenas)} != {self.state_digest, certified or self.state_digest}:
            raise StorageError(
                f"{self.path} is damaged: its content is not the state of round {self.round}",
                "delete it: an older one is taken, and the daemon fetches the state again",
            )
        return arenas


def write_snapshot(
    folder: Path,
    round_number: int,
    head: bytes,
    digest: bytes,
    arenas: Mapping[str, Tensor],
    name: str = "round",
    validation_loss: float | None = None,
) -> Snapshot:
    """Write the arenas of a state durably to a new file.

    Args:
        folder: Folder of the file.
        round_number: Round of the state.
        head: Digest of the head that the state belongs to.
        digest: Digest of `arenas`.
        arenas: Flat tensors by name.
        name: First part of the file name.
        validation_loss: Mean validation loss, if known.

    Raises:
        StorageError: The disk is full or gone.
    """
    path = folder / f"{name}-{round_number:09d}-{head.hex()[:16]}.safetensors"
    metadata = {"round": str(round_number), "head": head.hex(), "state_digest": digest.hex()}
    if validation_loss is not None:
        metadata["validation_loss"] = repr(validation_loss)
    write_tensors(path, arenas, metadata, synced=True)
    return Snapshot(path, round_number, head, digest, validation_loss)


def list_snapshots(folder: Path, chain: Chain | None = None) -> list[Snapshot]:
    """Return the readable snapshots in a folder, newest first; skip damaged ones.

    Args:
        folder: Folder to search.
        chain: Return only snapshots of this chain; None: of all branches.
    """
    found = [_describe(path) for path in folder.glob("*-*.safetensors")]
    wanted = (s for s in found if s and (chain is None or chain.has(s.round, s.head)))
    return sorted(wanted, key=lambda s: s.round, reverse=True)


def _describe(path: Path) -> Snapshot | None:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        loss = metadata.get("validation_loss")
        return Snapshot(
            path,
            int(metadata["round"]),
            bytes.fromhex(metadata["head"]),
            bytes.fromhex(metadata["state_digest"]),
            None if loss is None else float(loss),
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


@dataclass(eq=False)
class RunStorage:
    """Journal, results, snapshots and other files of one run.

    Used by one thread at a time: the worker's, or the one for tasks after a step. `content`,
    `snapshots` and `frozen` are thread-safe. Nothing is written before `begin`.
    """

    journal: Journal
    results: Results
    folder: Path
    """Folder of the snapshots."""
    room: DiskRoom
    """Space on the disk."""
    keep: int
    """Number of snapshots to keep, at least 1."""
    given: Mapping[str, Content | PieceStore]
    """Code and text of the run, by the names under which other peers request them."""

    def __post_init__(self) -> None:
        self._records = EncodedRecords()
        self._listing = threading.Lock()
        self._files: list[Snapshot] | None = None
        """Headers of all readable snapshots in the folder; None: the folder must be read again."""

    def begin(self) -> None:
        """Delete files that a crash left half-written.

        Complete files stay until the next snapshot: they may include the result of a round that
        other peers know to be decided.
        """
        for folder in (self.results.folder, self.folder):
            for path in folder.glob(f"*{PARTIAL_SUFFIX}"):
                remove_leftover(path)
        self._list_again()

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of our chain, newest first. Thread-safe.

        Other peers ask for states in chunks: the folder is read again only after this object
        changed it.
        """
        return [each for each in self._all_files() if self.journal.has(each.round, each.head)]

    def _all_files(self) -> list[Snapshot]:
        with self._listing:
            if self._files is None:
                self._files = list_snapshots(self.folder)
            return self._files

    def _list_again(self) -> None:
        with self._listing:
            self._files = None

    def content(self, name: str) -> Content | PieceStore | None:
        """Return the data that other peers get under this name; None: there is none. Thread-safe.

        Args:
            name: Name as listed in the module's docstring, or a name in `given`.
        """
        if name == OFFERS:
            return plain_bytes(self._listed())
        if name == FROZEN:
            return self.frozen()
        match = _NAME.fullmatch(name)
        if match is None:
            return self.given.get(name)
        kind, key, since = match.groups()
        if kind is None:
            return plain_bytes(self._records.page(self.journal.commits, int(since)))
        if kind == "state":
            return self._state(bytes.fromhex(key))
        result = self.results.unchecked(bytes.fromhex(key))
        return None if result is None else result.arenas

    def _listed(self) -> bytes:
        """Return the digests of the heads whose states are offered.

        Only states whose digest a commit or the run's manifest contains are offered. The newest
        state therefore waits for the next round.
        """
        reached = self.journal.head.round
        return b"".join(s.head for s in self.snapshots() if s.round == 0 or s.round < reached)

    def _state(self, head: bytes) -> Content | None:
        found = next((each for each in self.snapshots() if each.head == head), None)
        try:
            return None if found is None else found.load()
        except StorageError:
            return None

    def replace_chain(self, chain: Chain) -> None:
        """Replace the journal by another verified chain."""
        self.room.attempt(CHAIN, lambda: self.journal.replace(chain))

    def record(self, commit: Commit) -> None:
        """Write a commit and its held result, before the step; both are then offered to peers."""
        digest = commit.value.result_digest
        self._make_room(self.results.usual_bytes)
        self.room.attempt(RESULTS, lambda: self.results.save(digest))
        self.room.attempt(CHAIN, lambda: self.journal.append(commit))

    def snapshot(self, digest: bytes, arenas: Mapping[str, Tensor]) -> None:
        """Save the state at the journal's head; then delete old snapshots and unneeded results.

        If space is short, all snapshots but the newest are deleted first. Results are deleted once
        all remaining snapshots of our chain cover them.

        Args:
            digest: Digest of the state.
            arenas: Flat tensors of the state by name.
        """
        size, head = sum(arena.nbytes for arena in arenas.values()), self.journal.head
        needed = size + self.results.usual_bytes

        def write() -> None:
            if (free := self.room.free_bytes()) < needed:
                raise StorageError(
                    f"no room for a snapshot of {size:,} bytes beside the"
                    f" {needed - size:,} of a round: {free:,} are free",
                    "free some disk space; until then a restart has to fetch more from others",
                )
            write_snapshot(self.folder, head.round, head.digest, digest, arenas)

        self._make_room(needed)
        if self.room.attempt(SNAPSHOTS, write):
            self._prune(self.keep)

    # ---- frozen parameters

    def save_frozen(self, arenas: Mapping[str, Tensor]) -> None:
        """Save the complete, verified frozen parameters; they are then offered to peers."""
        path = self.folder / STILL
        self.room.attempt(FROZEN, lambda: write_tensors(path, arenas, synced=True))

    def frozen(self) -> dict[str, Tensor] | None:
        """Return the saved frozen parameters; None: no file can be read. Thread-safe."""
        with suppress(StorageError):
            return read_tensors(self.folder / STILL)
        return None

    # ---- this peer's own state

    def save_own(self, arenas: Mapping[str, Tensor], incarnation: bytes) -> None:
        """Save own state for this peer's next start, over the previous one; never offered."""
        path, head = self.folder / OWN, self.journal.head.digest
        metadata = {"head": head.hex(), "incarnation": incarnation.hex()}
        self.room.attempt(SNAPSHOTS, lambda: write_tensors(path, arenas, metadata, synced=True))

    def own(self) -> tuple[bytes, bytes, dict[str, Tensor]] | None:
        """Return the own state that was saved last; None: no file can be read.

        Returns:
            Digest of the head at which it was saved, the incarnation that saved it, and the arenas.
        """
        try:
            with safe_open(self.folder / OWN, framework="pt") as file:
                told = file.metadata() or {}
            head, incarnation = (bytes.fromhex(told[name]) for name in ("head", "incarnation"))
            return head, incarnation, read_tensors(self.folder / OWN)
        except (OSError, SafetensorError, StorageError, KeyError, ValueError):
            return None

    def _make_room(self, needed: int) -> None:
        """Delete files that only joiners need, unless `needed` bytes are free."""
        if self.room.free_bytes() < needed:
            self._prune(1)

    def _prune(self, keep: int) -> None:
        """Delete all snapshots but `keep`, and the results that the oldest remaining one covers.

        Snapshots of discarded branches are deleted first, even if their rounds are higher. They
        stay only until there are enough snapshots of our chain.
        """
        ours = self.journal
        found = list_snapshots(self.folder)
        for old in sorted(found, key=lambda each: not ours.has(each.round, each.head))[keep:]:
            remove_leftover(old.path)
        self._list_again()
        if kept := self.snapshots()[:keep]:
            since = ours.commits[kept[-1].round :]
            self.results.prune({commit.value.result_digest for commit in since})
