"""What of a run lies on this peer's disk, and what of it others may fetch.

A snapshot is the whole state of one head in one file: a mapping of names to flat tensors. A restart
loads the newest one and replays the results since, as the chain names them. So results go to disk
before the commit that names them, and are dropped once the oldest snapshot covers them. Older ones
are for joiners that fetch a state just now; where room is short they go first. A full disk stops
the writing, never the training.

    snapshots          which states are offered: their heads, 32 bytes each
    frozen             the parameters that no step changes, the same in all states
    state/<head>       a state's arenas
    result/<digest>    one averaged result
    chain/<n>          the commits after round n, as many as make a page

The chain: an unfinished last record (power loss while appending) is written over; anything else
that does not read back is refused, never guessed at.
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
from atom.swarm.chain.commit_chain import EncodedRecords, parse_commits, record_of, verified_heads
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content, plain_bytes
from atom.swarm.state.piece_store import PieceStore
from atom.training.storage.disk import ASIDE, DiskRoom, read_tensors, write_tensors
from atom.training.storage.results import Results

OFFERS = "snapshots"
"""Name of the list of states."""
SNAPSHOTS, RESULTS, CHAIN = "snapshots", "results", "chain"
OWN, STILL = "own.safetensors", "frozen.safetensors"
_NAME = re.compile("(?:(state|result)/([0-9a-f]{64})|chain/([0-9]{1,12}))")


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

    def keep_proof(self, commits: Sequence[Commit]) -> bool:
        """Write two commits with one parent beside the journal: proof of a double vote. Return
        False if there is such a file already, or the disk does not take it."""
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
        """What is not on disk yet; an earlier attempt may have left half a record."""
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
    """Writes and syncs, in place of all from `start` on. Raises: OSError."""
    with path.open("r+b" if start else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Snapshot:
    """A state's file, and what it says of itself."""

    path: Path
    round: int
    head: bytes
    state_digest: bytes
    validation_loss: float | None = None
    """Where the file says so."""

    def is_on(self, heads: Sequence[Head]) -> bool:
        """Whether its state is one of the chain with these heads, from genesis on."""
        return 0 <= self.round < len(heads) and heads[self.round].digest == self.head

    def load(self) -> dict[str, Tensor]:
        """The arenas by name, as they are. Raises: StorageError if the file does not read back."""
        return read_tensors(self.path)

    def checked(self, certified: bytes | None) -> dict[str, Tensor]:
        """The arenas by name: every byte is what the file's own digest, and the chain's, says.
        `certified`: the chain's, if it has one. Raises: StorageError."""
        arenas = self.load()
        if {state_digest(arenas)} != {self.state_digest, certified or self.state_digest}:
            raise StorageError(
                f"{self.path} is damaged: its content is not the state of round {self.round}",
                "export another snapshot with --snapshot FILE, or fetch the state anew",
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
    """Saves `arenas` (name → flat tensor) in a file whose name begins with `name`. Raises:
    StorageError when the disk is full or gone."""
    path = folder / f"{name}-{round_number:09d}-{head.hex()[:16]}.safetensors"
    metadata = {
        "round": str(round_number),
        "head": head.hex(),
        "state_digest": digest.hex(),
    }
    if validation_loss is not None:
        metadata["validation_loss"] = repr(validation_loss)
    write_tensors(path, arenas, metadata, synced=True)
    return Snapshot(path, round_number, head, digest, validation_loss)


def list_snapshots(folder: Path, heads: Sequence[Head] | None = None) -> list[Snapshot]:
    """Readable snapshots, newest first; a damaged one is passed over. `heads`: of the chain that
    they have to be on; None: of whatever branch."""
    found = [_describe(path) for path in folder.glob("*-*.safetensors")]
    wanted = (s for s in found if s and (heads is None or s.is_on(heads)))
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


class RunStorage:
    """Called by one thread at a time: the worker's, or the one after a step; but for `content`,
    which is for any thread."""

    def __init__(
        self,
        journal: Journal,
        results: Results,
        folder: Path,
        room: DiskRoom,
        keep: int,
        given: Mapping[str, Content | PieceStore],
    ) -> None:
        """`folder`: of the snapshots. `keep`: how many of them, at least one. `given`: the run's
        own code and its text, by the names that others ask for them."""
        self.journal = journal
        self.results = results
        self.room = room
        self._folder = folder
        self._keep = keep
        self._given = given
        self._records = EncodedRecords()
        self._listing = threading.Lock()
        self._files: list[Snapshot] | None = None
        """Headers of all readable snapshots in the folder; None: to be read."""

    def begin(self) -> None:
        """Remove what a crash left half-written. The rest stays until the next snapshot: means of
        a round that others know to be decided may be among it."""
        for folder in (self.results.folder, self._folder):
            for path in folder.glob(f"*{ASIDE}"):
                remove_leftover(path)
        self._list_again()

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of our chain, newest first. Thread-safe.

        Other peers ask for states in chunks: the folder is read again only after this object
        changed it.
        """
        return [each for each in self._all_files() if each.is_on(self.journal.heads)]

    def _all_files(self) -> list[Snapshot]:
        with self._listing:
            if self._files is None:
                self._files = list_snapshots(self._folder)
            return self._files

    def _list_again(self) -> None:
        with self._listing:
            self._files = None

    def content(self, name: str) -> Content | PieceStore | None:
        """What others get under this name. None: nothing."""
        if name == OFFERS:
            return plain_bytes(self._listed())
        if name == FROZEN:
            return self.frozen()
        match = _NAME.fullmatch(name)
        if match is None:
            return self._given.get(name)
        kind, key, since = match.groups()
        if kind is None:
            return plain_bytes(self._records.page(self.journal.commits, int(since)))
        if kind == "state":
            return self._state(bytes.fromhex(key))
        result = self.results.unchecked(bytes.fromhex(key))
        return None if result is None else result.arenas

    def _listed(self) -> bytes:
        """Only states that a commit vouches for, or the run's manifest: the newest has to wait for
        the round after it."""
        reached = self.journal.head.round
        return b"".join(s.head for s in self.snapshots() if s.round == 0 or s.round < reached)

    def _state(self, head: bytes) -> Content | None:
        found = next((each for each in self.snapshots() if each.head == head), None)
        try:
            return None if found is None else found.load()
        except StorageError:
            return None

    def replace_chain(self, commits: Sequence[Commit], heads: Sequence[Head], length: int) -> None:
        """The journal is the first so many of these (verified) commits from here on."""
        kept, along = commits[:length], heads[: length + 1]
        self.room.attempt(CHAIN, lambda: self.journal.replace(kept, along))

    def record(self, commit: Commit) -> None:
        """A commit and its held result: on disk before the step, and offered."""
        digest = commit.value.result_digest
        self._make_room(self.results.usual_bytes)
        self.room.attempt(RESULTS, lambda: self.results.save(digest))
        self.room.attempt(CHAIN, lambda: self.journal.append(commit))

    def snapshot(self, digest: bytes, arenas: Mapping[str, Tensor]) -> None:
        """Saves the state of the journal's head and drops the results it covers, but for the
        snapshots before it. Without room, all but the newest go first."""
        size, head = sum(arena.nbytes for arena in arenas.values()), self.journal.head
        needed = size + self.results.usual_bytes

        def write() -> None:
            if (free := self.room.free_bytes()) < needed:
                raise StorageError(
                    f"no room for a snapshot of {size:,} bytes beside the"
                    f" {needed - size:,} of a round: {free:,} are free",
                    "free some disk space; until then a restart has to fetch more from others",
                )
            write_snapshot(self._folder, head.round, head.digest, digest, arenas)

        self._make_room(needed)
        if self.room.attempt(SNAPSHOTS, write):
            self._prune(self._keep)

    # ---- what no step changes

    def save_frozen(self, arenas: Mapping[str, Tensor]) -> None:
        """Whole and checked: it is offered from now on."""
        path = self._folder / STILL
        self.room.attempt(FROZEN, lambda: write_tensors(path, arenas, synced=True))

    def frozen(self) -> dict[str, Tensor] | None:
        """What was saved. From any thread. None: there is nothing that can be read."""
        with suppress(StorageError):
            return read_tensors(self._folder / STILL)
        return None

    # ---- what is this peer's own

    def save_own(self, arenas: Mapping[str, Tensor], incarnation: bytes) -> None:
        """For this peer's next start, in place of the last; it is offered to nobody."""
        path, head = self._folder / OWN, self.journal.head.digest
        metadata = {"head": head.hex(), "incarnation": incarnation.hex()}
        self.room.attempt(SNAPSHOTS, lambda: write_tensors(path, arenas, metadata, synced=True))

    def own(self) -> tuple[bytes, bytes, dict[str, Tensor]] | None:
        """What was saved last: the digest of the head that it was at, the incarnation that it was
        of, and the arenas. None: there is nothing that can be read."""
        try:
            with safe_open(self._folder / OWN, framework="pt") as file:
                told = file.metadata() or {}
            head, incarnation = (bytes.fromhex(told[name]) for name in ("head", "incarnation"))
            return head, incarnation, read_tensors(self._folder / OWN)
        except (OSError, SafetensorError, StorageError, KeyError, ValueError):
            return None

    def _make_room(self, needed: int) -> None:
        """What is there for joiners alone goes, if so many bytes are not free."""
        if self.room.free_bytes() < needed:
            self._prune(1)

    def _prune(self, keep: int) -> None:
        """Deletes all snapshots but `keep`, and the results that all of ours cover.

        What a discarded branch left, be its rounds ever so high, goes first, but not before there
        is something of ours in its place.
        """
        heads = self.journal.heads
        ours_first = sorted(list_snapshots(self._folder), key=lambda found: not found.is_on(heads))
        for old in ours_first[keep:]:
            remove_leftover(old.path)
        self._list_again()
        if ours := self.snapshots()[:keep]:
            since = self.journal.commits[ours[-1].round :]
            self.results.prune({commit.value.result_digest for commit in since})
