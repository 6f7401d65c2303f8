"""Disks of its own for a peer's state directory: one can be filled to the last byte, one breaks. As
root."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE = "16m"
_BLOCK_BYTES = 4096
_IMAGE_BYTES = 64 << 20


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
    with _mounted(place, "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "atom-small-disk"):
        yield SmallDisk(place)


@contextlib.contextmanager
def breaking_disk(place: Path) -> Iterator[None]:
    """An ext4 file system. Needs loop devices. Raises: subprocess.CalledProcessError."""
    image = place.with_name(f"{place.name}.ext4")
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    _run("mkfs.ext4", "-q", str(image))
    with _mounted(place, "-o", "loop,errors=remount-ro", str(image)):
        yield


def turn_read_only(place: Path) -> None:
    """As after an error of the disk: under whoever has files open on it. For good."""
    number = place.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1", encoding="ascii")


@contextlib.contextmanager
def _mounted(place: Path, *what: str) -> Iterator[None]:
    place.mkdir()
    _run("mount", *what, str(place))
    try:
        yield
    finally:  # lazily: whoever was killed a moment ago may still have a file open
        _run("umount", "--lazy", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
