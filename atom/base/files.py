"""Files on a disk: find, lock, replace, measure and remove them, and explain write errors; the
environment of child processes."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from atom.base.errors import ConfigError

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
"""Folder that contains the package `atom`."""
_MAX_TRIES, _RETRY_S = 100, 0.02
"""Attempts to take a lock, and seconds between two of them."""


def read_bounded(path: Path, most_bytes: int, too_long: str) -> bytes:
    """Return the content of a file that a user names.

    Args:
        path: the file.
        most_bytes: maximum size.
        too_long: hint for a file that is larger.

    Raises:
        ConfigError: the file cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        problem = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} cannot be read: {problem}", "check its path and rights"
        ) from error
    if len(content) > most_bytes:
        raise ConfigError(f"{path} is longer than {most_bytes // 1024} KiB", too_long)
    return content


def why_not_written(problem: Exception) -> str:
    """Return the cause of a failed write in words, such as "the disk is full".

    Args:
        problem: an OSError, or the exception that a library raised in its place.

    Returns:
        Text by the error number; the exception's own message if it has no number.
    """
    number = getattr(problem, "errno", None)
    if number == errno.ENOSPC:
        return "the disk is full"
    if number == errno.EDQUOT:
        return "your quota of the disk is used up"
    return str(problem) if number is None else os.strerror(number)


def remove_leftover(path: Path) -> None:
    """Remove a file if that is possible, and never raise.

    Cleaning up must not hide the error that made it necessary: on a disk that has become read-only
    the file stays.
    """
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def rename_durably(source: Path, target: Path) -> None:
    """Rename a synced file, and sync the folder, so that the new name survives a power cut.

    Without the second step a power cut may bring back the old file under `target`.

    Args:
        source: a whole file whose content is on the disk already (`os.fsync`).
        target: the final name in the same folder; a file of that name is replaced.

    Raises:
        OSError: the disk refused. `target` may have been replaced.
    """
    os.replace(source, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):  # CIFS and some FUSE sync no folders
            raise
    finally:
        os.close(folder)


def is_held(path: Path) -> bool:
    """Return True if any process, including the caller, holds an exclusive lock on the file.

    The kernel releases such a lock when its process ends, even by a crash.

    Raises:
        OSError: the file system does not answer.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def is_claimed(file: IO[str], path: Path) -> bool:
    """Lock `file` exclusively until it is closed; return False if another process holds it.

    `is_held` takes a shared lock for a moment. This function waits until that lock is released.

    Args:
        file: the file, open at `path`.
        path: its path.

    Raises:
        OSError: the file system has no locks.
    """
    for _ in range(_MAX_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_held(path):
                return False
        else:
            return True
        time.sleep(_RETRY_S)  # a blocking lock cannot tell a check by `is_held` from a holder
    return False


def lies_at(file: IO[str], path: Path) -> bool:
    """Return True if the open `file` is still found at `path`: not deleted, moved or replaced.

    Raises:
        OSError: the file system does not answer.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False


def expand_home(path: Path | str) -> Path:
    """Replace a leading `~` or `~user` by the home directory.

    The path of an unknown user stays unchanged, so that its reader reports a missing file
    (`Path.expanduser` would raise RuntimeError).
    """
    return Path(os.path.expanduser(path))


def nearest_folder(path: Path) -> Path:
    """Return `path` if it is a folder, else the nearest existing folder above it."""
    path = expand_home(path).absolute()
    while not path.is_dir():
        path = path.parent
    return path


def disk_bytes(folders: Iterable[Path]) -> int:
    """Return the bytes that the files below `folders` occupy on the disk. Holes take no space.

    Files that a daemon removes during the count are left out.
    """
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_blocks * 512
    return total


def child_environment() -> dict[str, str]:
    """Return the environment of a child process: this Atom, no GPU, one arithmetic thread."""
    paths = [str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
