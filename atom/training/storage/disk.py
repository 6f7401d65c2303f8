"""Writing to a disk that may be full, slow or gone: files that are whole or not there.

Nothing that a peer writes during a run is needed for the round at hand. When the disk is full it
stops writing, says so once, tries again later and trains on. What is not written can be fetched
from others after a restart.
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

ASIDE = ".partial"
"""How the name of a file ends that is not whole yet."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    synced: bool = False,
) -> None:
    """Puts the tensors in `path`, in place of what is there. `synced`: they survive a power cut.

    Raises: StorageError when the disk is full or gone.
    """
    aside = path.with_suffix(ASIDE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), aside, metadata=dict(metadata or {}))
        if synced:
            sync(aside)
            rename_durably(aside, path)
        else:
            os.replace(aside, path)
    except (OSError, SafetensorError) as problem:
        remove_leftover(aside)
        raise StorageError(
            f"cannot write {path}: {why_not_written(problem)}",
            "free some disk space, and look at the disk; what is missing is fetched from others",
        ) from problem


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name, mapped from the file: read when used, even once its name is gone.

    Raises: StorageError if it is no whole file of tensors.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise StorageError(
            f"{path} cannot be read: {problem}", "delete it; the peer fetches it from the swarm"
        ) from problem


def sync(path: Path) -> None:
    """Takes as long as the disk does. Raises: OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


class DiskRoom:
    """One per peer. Thread-safe."""

    def __init__(
        self, folder: Path, events: EventSink, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """`folder` is on the disk in question; `say` is for the person at the terminal."""
        self._folder = folder
        self._events = events
        self._say = say
        self._lock = threading.Lock()
        self._paused: dict[str, str] = {}

    @property
    def paused(self) -> dict[str, str]:
        """What is not being written, and why; empty when all is well."""
        with self._lock:
            return dict(self._paused)

    def free_bytes(self) -> int:
        """What the file system says; a quota may be tighter."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return 0

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Calls `write`; whether it succeeded. Trouble with the disk is told, not raised."""
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
