"""State directory: all files of a peer. Only one daemon at a time may use it.

Only its owner may look into it (mode 0700): it holds the peer's private key, addresses of other
peers, and the run's text. The control socket lies in `$XDG_RUNTIME_DIR`, in this directory, or in
a temporary folder: the first one that is private and has a short enough path. `control.address`
names the socket. A daemon and its clients may see different environments, so clients read that file
instead of searching.
"""

import hashlib
import os
import shutil
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from atom.base.errors import StorageError
from atom.base.files import (
    disk_bytes,
    is_claimed,
    is_held,
    lies_at,
    nearest_folder,
    remove_leftover,
    rename_durably,
    why_not_written,
)
from atom.swarm.identity import Identity

_MAX_SOCKET_PATH_BYTES = 100
_SIGNS_OF_A_TARGET = frozenset("%#?,")
"""Characters that gRPC does not take literally in "unix:PATH"."""
_TEMPORARY_PREFIX = "atom-control-"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""Rights of all users but the owner."""


class StateDirectory:
    """Paths below `root`; call `lock` before writing anything."""

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
        """Folder with the generated source of this peer's sub-models, for people to read."""
        self.peer_file = root / "peer.toml"
        """Peer file that applies if the command line names none."""
        self.own_code = root / "own_code.py"
        """Source file of the model, if the run brings its own code."""
        self.base = root / "base.txt"
        """Path of the folder that `--from` named, for the adapters that `atom export` writes."""
        self.tokenizer = root / "tokenizer"
        """The run's tokenizer.json with its settings, if it has one, for `atom export`."""
        self.events = root / "events.jsonl"
        self.known_addresses = root / "addresses.json"
        """DHT addresses of peers met before, to enter the swarm again after a restart."""
        self.traffic = root / "traffic.json"
        """Bytes sent and received, by day."""
        self.map_ports = root / "map_ports"
        """The owner's answer, "yes" or "no", to the question whether the router may open ports."""
        self.paused = root / "paused"
        """File that exists from `atom pause` until `atom resume`, also across restarts."""
        self.control_address = root / "control.address"
        """Path of the control socket, as text."""
        self.dht_log = root / "dht.log"
        self._lock_file = root / "daemon.lock"
        self._lock: IO[str] | None = None

    @property
    def kept_bytes(self) -> int:
        """Disk space taken by states, checkpoints, results, text and downloads, in bytes.

        The plan of a run counts exactly these folders.
        """
        folders = self.snapshots, self.checkpoints, self.results, self.tokens, self.downloads
        return disk_bytes(folders)

    @property
    def room_bytes(self) -> int:
        """Disk space that is free now, or already taken by the folders of `kept_bytes`."""
        return shutil.disk_usage(nearest_folder(self.root)).free + self.kept_bytes

    @property
    def control_socket(self) -> Path:
        """Path of the socket on which the daemon of this directory takes commands."""
        try:
            return Path(os.fsdecode(self.control_address.read_bytes()))
        except OSError:
            return self.root / "control.sock"

    def place_control_socket(self) -> Path:
        """Choose a private folder for the control socket, and record the socket's path.

        Returns:
            The path to listen on. Nothing lies there, unless it cannot be removed.

        Raises:
            StorageError: the path cannot be recorded.
            OSError: no folder can be made in /tmp.
        """
        self.remove_control_socket()
        root = os.path.realpath(self.root)
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        places = Path(runtime, f"atom-{name}.sock"), Path(root, "control.sock")
        path = next(filter(_can_listen, places), None)
        if path is None:  # not in TMPDIR, whose path may be too long as well
            path = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir="/tmp"), "control.sock")
        write_atomically(self.control_address, os.fsencode(path))
        return path

    def remove_control_socket(self) -> None:
        """Remove the recorded control socket and its temporary folder, if possible."""
        path = self.control_socket
        remove_leftover(path)
        if path.parent.name.startswith(_TEMPORARY_PREFIX):
            with suppress(OSError):
                path.parent.rmdir()
        remove_leftover(self.control_address)

    @property
    def key_warning(self) -> str:
        """Warning for the user if others may read the private key; empty if not."""
        if self.identity.exists() and self.identity.stat().st_mode & _OTHERS:
            return (
                f"other users may read the private key: `chmod 600 {self.identity}`, or, on a disk "
                "without permissions, another --state DIR"
            )
        return ""

    @property
    def in_use(self) -> bool:
        """True while a daemon holds the lock."""
        with suppress(OSError):
            return is_held(self._lock_file)
        return False

    def lock(self) -> None:
        """Create the directory, make it private, and lock it until `unlock` or the process's end.

        Raises:
            StorageError: the directory cannot be used, or another daemon uses it.
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
        if len(os.listdir(self.root)) == 1:  # git ignores a new directory, which holds the key
            write_atomically(self.root / ".gitignore", b"*\n")

    def _opened(self) -> IO[str]:
        if not _is_text(self.root):
            raise StorageError(
                f"cannot use the state directory {self.root}: its path is not UTF-8 text",
                "choose another one with --state DIR",
            )
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(self.root)
            return self._lock_file.open("a+")
        except OSError as problem:
            hint = "choose another one with --state DIR"
            if isinstance(problem, PermissionError):  # a container may offer no other place
                hint = f"give write permission to user {os.geteuid()}, or {hint}"
            raise StorageError(
                f"cannot use the state directory {self.root}: {why_not_written(problem)}", hint
            ) from problem

    def require_there(self) -> None:
        """Raise if the locked directory is no longer where it was.

        A daemon that starts at the old path would not find our lock, so two daemons could use
        one key.

        Raises:
            StorageError: the directory was deleted or moved.
        """
        is_there = True
        with suppress(OSError):  # a disk that does not answer is no proof of a move
            is_there = self._lock is None or lies_at(self._lock, self._lock_file)
        if not is_there:
            raise StorageError(
                f"the state directory {self.root} was deleted or moved while its daemon ran",
                "move it back, then start again; otherwise the next start creates a new peer with "
                "an empty directory",
            )

    def unlock(self) -> None:
        """Release the directory to other daemons."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _make_private(folder: Path) -> None:
    """Take away the rights of other users, as far as this user may change them.

    A folder with the sticky bit is shared on purpose, such as /tmp, and stays as it is.
    """
    found, mode = folder.stat(), folder.stat().st_mode
    if found.st_uid == os.geteuid() and mode & _OTHERS and not mode & stat.S_ISVTX:
        with suppress(OSError):  # not every file system has rights
            folder.chmod(stat.S_IMODE(mode) & ~_OTHERS)


def _can_listen(path: Path) -> bool:
    """Return True if a socket can be made there, and its folder belongs to us alone.

    gRPC and the kernel must take the path, and not every file system holds sockets (vfat, the
    drives of Windows in WSL, some FUSE). A file at the path is removed.
    """
    fits = path.is_absolute() and len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES
    if not (fits and _SIGNS_OF_A_TARGET.isdisjoint(str(path)) and _is_private(path.parent)):
        return False
    remove_leftover(path)
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.bind(str(path))
        remove_leftover(path)
        return True
    return False


def _is_private(folder: Path) -> bool:
    """Return True if the folder is ours and no other user can look into it or change it."""
    found = folder.stat() if folder.is_dir() else None
    return found is not None and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


def _is_text(path: Path) -> bool:
    """Return True if the path is valid UTF-8: PyTorch and gRPC accept no other names."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def write_atomically(path: Path, raw: bytes) -> None:
    """Replace the content of `path` as a whole: write another file, sync it, rename it.

    A file that has this content already is not written again, so a restart needs no disk space.

    Raises:
        StorageError: the disk is full or gone.
    """
    with suppress(OSError):
        if path.read_bytes() == raw:
            return
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        rename_durably(partial, path)
    except OSError as problem:
        remove_leftover(partial)
        raise StorageError(
            f"cannot write {path}: {why_not_written(problem)}", "free some disk space"
        ) from problem


def own_identity(state: Path) -> Identity | None:
    """Return the identity kept in the state directory `state`, or None if it has none.

    Raises:
        StorageError: the key file is damaged.
    """
    key = StateDirectory(state).identity
    return Identity.load_or_create(key) if key.exists() else None
