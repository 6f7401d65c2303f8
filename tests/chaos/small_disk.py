"""A disk of its own for a peer's state directory, which can be filled to the last byte. As root."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = "16m"
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class SmallDisk:
    """Mounted at `place`; a file of somebody else's lies on it."""

    place: Path

    @property
    def _filler(self) -> Path:
        return self.place / "somebody-elses"

    def fill(self, leave_bytes: int = 0) -> None:
        """All but so much; again, if something was removed since."""
        left = shutil.disk_usage(self.place).free - leave_bytes
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while left > 0:
                left -= file.write(bytes(min(left, _BLOCK_BYTES)))

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[SmallDisk]:
    """Raises: subprocess.CalledProcessError."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "atom-small-disk"]
    subprocess.run([*mount, str(place)], check=True, capture_output=True)
    try:
        yield SmallDisk(place)
    finally:  # lazily: whoever was killed a moment ago may still have a file open
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)
