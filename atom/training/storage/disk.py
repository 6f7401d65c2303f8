"""Atomic writes to a disk that may be full, slow or gone: a file is complete or does not exist.

No file that a peer writes during a run is needed for the current round. When the disk is full, the
peer reports it once, tries again later and continues training. After a restart it fetches the
missing data from other peers.
"""

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from atom.base.errors import StorageError
from atom.base.events import EventSink
from atom.base.files import remove_leftover, rename_durably, why_not_written

PARTIAL_SUFFIX = ".partial"
"""Suffix of a file that is not complete yet."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    synced: bool = False,
) -> None:
    """Write the tensors to `path`, replacing any existing file.

    Args:
        path: File to write.
        tensors: Tensors by name.
        metadata: Texts for the file's header.
        synced: True: when the call returns, the file survives a power cut.

    Raises:
        StorageError: The disk is full or gone.
    """
    partial = path.with_suffix(PARTIAL_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), partial, metadata=dict(metadata or {}))
        if synced:
            sync(partial)
            rename_durably(partial, path)
        else:
            os.replace(partial, path)
    except (OSError, SafetensorError) as problem:
        remove_leftover(partial)
        raise StorageError(
            f"cannot write {path}: {why_not_written(problem)}",
            "free some disk space, and look at the disk; what is missing is fetched from others",
        ) from problem


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file by name.

    They are memory-mapped: read when used, even after the file has been deleted.

    Raises:
        StorageError: The file is missing, incomplete or not a file of tensors.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise StorageError(
            f"{path} cannot be read: {problem}", "delete it; the peer fetches it from the swarm"
        ) from problem


def sync(path: Path) -> None:
    """Wait until the file's content is on the disk.

    Raises:
        OSError: The disk refused.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


class DiskRoom:
    """Record of the writes that currently fail; a peer has one. Thread-safe."""

    def __init__(
        self, folder: Path, events: EventSink, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Begin without failures.

        Args:
            folder: Folder on the disk to watch.
            events: Event log.
            say: Shows a message to the person at the terminal.
        """
        self._folder = folder
        self._events = events
        self._say = say
        self._lock = threading.Lock()
        self._paused: dict[str, str] = {}

    @property
    def paused(self) -> dict[str, str]:
        """Error messages of the kinds of data that cannot be written; empty if all writes work."""
        with self._lock:
            return dict(self._paused)

    def free_bytes(self) -> int:
        """Return the free bytes by the file system (a quota may allow less); 0 on an error."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Call `write` and report a StorageError to the event log instead of raising it.

        Args:
            what: Kind of data, by which repeated failures are reported once.
            write: Function that writes the data.

        Returns:
            True if the data was written.
        """
        try:
            write()
        except StorageError as problem:
            self._refused(what, problem)
            return False
        with self._lock:
            was_paused = self._paused.pop(what, None) is not None
        if was_paused:
            self._events.emit("disk-room", what=what, free_bytes=self.free_bytes())
            self._say(f"the disk has room again: {what} written")
        return True

    def _refused(self, what: str, problem: StorageError) -> None:
        with self._lock:
            known = what in self._paused
            self._paused[what] = problem.message
        if known:
            return
        told = {"detail": problem.message[:300], "hint": problem.hint}
        self._events.emit("disk-full", what=what, **told, free_bytes=self.free_bytes())
        self._say(f"{problem.message}; tried again later ({problem.hint})")
