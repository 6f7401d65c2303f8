"""Everything a peer keeps on disk, in one directory that one daemon at a time may use."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from atom.base.errors import StorageError
from atom.base.files import (
    disk_bytes,
    is_claimed,
    is_held,
    lies_at,
    remove_leftover,
    why_not_written,
)
from atom.swarm.identity import Identity

_MAX_SOCKET_PATH_BYTES = 100
_SIGNS_OF_A_TARGET = frozenset("%#?,")
"""gRPC reads "unix:PATH" as an address: of a path with one of these it takes another one."""
_SOCKETS_ASIDE = Path("/tmp")
"""Not TMPDIR's: a daemon and who asks it may have two of those, and one may be as long."""


class StateDirectory:
    """Paths below `root`; `lock` before writing anything."""

    def __init__(self, root: Path) -> None:
        self.root = root = root.absolute()
        self.identity = root / "identity.key"
        self.manifest = root / "manifest.bin"
        self.chain = root / "chain.bin"
        self.snapshots = root / "snapshots"
        self.checkpoints = root / "checkpoints"
        self.results = root / "results"
        self.downloads = root / "downloads"
        self.tokens = root / "tokens"
        self.program = root / "program"
        """The generated source of this peer's sub-models, for people to read."""
        self.peer_file = root / "peer.toml"
        """What this box gives, if no other file was named."""
        self.own_code = root / "own_code.py"
        """The source file of a run whose model is its owner's own code."""
        self.tokenizer = root / "tokenizer.json"
        """The run's, if it has one, for `atom export`."""
        self.events = root / "events.jsonl"
        self.known_addresses = root / "addresses.json"
        """DHT addresses of peers met before: the way back into the swarm after a restart."""
        self.traffic = root / "traffic.json"
        """What the line carried, by day."""
        self.paused = root / "paused"
        """There from `atom pause` until `atom resume`, also over restarts."""
        self.dht_log = root / "dht.log"
        self._lock_file = root / "daemon.lock"
        self._lock: IO[str] | None = None

    @property
    def kept_bytes(self) -> int:
        """Of the disk, taken by states, checkpoints, results, text and what is being fetched: by
        what the plan of a run counts."""
        folders = self.snapshots, self.checkpoints, self.results, self.tokens, self.downloads
        return disk_bytes(folders)

    @property
    def control_socket(self) -> Path:
        """Beside the rest, unless a Unix socket cannot have that path, or gRPC reads another. The
        same by whichever links the directory is named."""
        root = os.path.realpath(self.root)
        path = Path(root) / "control.sock"
        fits = len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES
        if fits and _SIGNS_OF_A_TARGET.isdisjoint(str(path)):
            return path
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        return _SOCKETS_ASIDE / f"atom-{os.getuid()}-{name}.sock"

    @property
    def in_use(self) -> bool:
        """Whether a daemon has claimed it."""
        with suppress(OSError):
            return is_held(self._lock_file)
        return False

    def lock(self) -> None:
        """Creates the directory and claims it until the process ends.

        Raises: StorageError if it cannot be used, or another daemon uses it.
        """
        file = self._opened()
        try:
            is_ours = is_claimed(file, self._lock_file)
        except OSError as problem:
            file.close()
            raise StorageError(
                f"cannot lock {self._lock_file}: {problem.strerror}",
                "choose a directory on a disk whose file system has locks: --state DIR",
            ) from problem
        if not is_ours:
            file.close()
            raise StorageError(
                f"another daemon runs in {self.root}",
                "stop it with `atom leave`, or choose another directory with --state DIR",
            )
        self._lock = file

    def _opened(self) -> IO[str]:
        """Raises: StorageError."""
        if not _is_text(self.root):
            raise StorageError(
                f"cannot use the state directory {self.root}: its path is no text in UTF-8",
                "choose another one with --state DIR",
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return self._lock_file.open("a+")
        except OSError as problem:
            hint = "choose another one with --state DIR"
            if isinstance(problem, PermissionError):  # in a container there is no better place
                hint = f"let user {os.geteuid()} write there, who this runs as, or {hint}"
            raise StorageError(
                f"cannot use the state directory {self.root}: {why_not_written(problem)}", hint
            ) from problem

    def require_there(self) -> None:
        """Of what we locked: whoever starts where it was finds no lock, so nothing that we go on
        with would be ours alone. Raises: StorageError once it was deleted or moved."""
        is_there = True
        with suppress(OSError):  # a disk that does not answer took nothing away
            is_there = self._lock is None or lies_at(self._lock, self._lock_file)
        if not is_there:
            raise StorageError(
                f"the state directory {self.root} was deleted or moved while its daemon ran",
                "put it back if it was moved, then start again; a start without it makes an empty "
                "one, as a new peer",
            )

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _is_text(path: Path) -> bool:
    """Names on a disk may be any bytes; PyTorch and gRPC take none but these."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_atomically(path: Path, raw: bytes) -> None:
    """Aside, synced, renamed. What is there already is not written again: a start with what an
    earlier one kept needs no room. Raises: StorageError when the disk is full or gone."""
    with suppress(OSError):
        if path.read_bytes() == raw:
            return
    aside = path.with_name(path.name + ".partial")
    try:
        with aside.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as problem:
        remove_leftover(aside)
        raise StorageError(
            f"cannot write {path}: {why_not_written(problem)}", "free some disk space"
        ) from problem


def own_identity(state: Path) -> Identity | None:
    """Of the peer that keeps its state there; None: there is none yet. Raises: StorageError."""
    key = StateDirectory(state).identity
    return Identity.load_or_create(key) if key.exists() else None
