"""That its owner paused this peer, as a file: it outlives the process, a crash and a reboot."""

from pathlib import Path

from atom.base.errors import StorageError
from atom.daemon.state_directory import write_atomically


class PauseMark:
    """There while the owner's pause lasts; what is in it does not matter."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def stands(self) -> bool:
        return self._path.exists()

    def put(self) -> str:
        """Empty, or in words what a disk that takes nothing means."""
        try:
            write_atomically(self._path, b"`atom resume` removes this\n")
        except StorageError as problem:
            return f"; a restart would end this, {problem.message}"
        return ""

    def remove(self) -> str:
        """As `put`."""
        try:
            if self.stands:  # a disk that takes no writes refuses to remove what is not there, too
                self._path.unlink(missing_ok=True)
        except OSError as problem:
            return f"; a restart would be paused, cannot remove {self._path}: {problem.strerror}"
        return ""
