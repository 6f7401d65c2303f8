"""What to do when the disk is full: stop writing, say so once, try again later, train on.

Nothing that a peer writes during a run is needed for the round at hand. What is not written can be
fetched from others after a restart.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from atom.base.errors import StorageError
from atom.base.events import EventSink


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

    def give_up(self, what: str) -> None:
        """It is not to be written any more, so that it could not be is no trouble."""
        with self._lock:
            self._paused.pop(what, None)

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Calls `write`; whether it succeeded. Trouble with the disk is told, not raised."""
        try:
            write()
        except StorageError as problem:
            self._refused(what, problem)
            return False
        self._written(what)
        return True

    def _refused(self, what: str, problem: StorageError) -> None:
        with self._lock:
            known = what in self._paused
            self._paused[what] = problem.message
        if known:
            return
        self._events.emit(
            "disk-full",
            what=what,
            detail=problem.message[:300],
            hint=problem.hint,
            free_bytes=self.free_bytes(),
        )
        self._say(f"{problem.message}; training goes on without ({problem.hint})")

    def _written(self, what: str) -> None:
        with self._lock:
            was_paused = self._paused.pop(what, None) is not None
        if was_paused:
            self._events.emit("disk-room", what=what, free_bytes=self.free_bytes())
            self._say(f"the disk has room again: {what} written")
