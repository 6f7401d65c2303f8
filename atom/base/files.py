"""Files on a disk: where they are, held by a process for life, left over, or not written, and why;
and what processes that are started find around them."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

_ABOVE = Path(__file__).resolve().parents[2]
"""The folder that `atom` lies in."""
_MOST_TRIES, _TRY_S = 100, 0.02


def why_not_written(problem: Exception) -> str:
    """Of an OSError, or of what a library made of one."""
    number = getattr(problem, "errno", None)
    if number == errno.ENOSPC:
        return "the disk is full"
    if number == errno.EDQUOT:
        return "your quota of the disk is used up"
    return str(problem) if number is None else os.strerror(number)


def remove_leftover(path: Path) -> None:
    """Where the disk does not take that either, as one that has become read-only, it stays: whoever
    tidies up has other cares, or a failure of its own to tell. Raises: nothing."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Whether a process holds the file locked, this one included: the system lets go of it whatever
    ends that process. Raises: OSError where nobody can tell."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def is_claimed(file: IO[str], path: Path) -> bool:
    """Whether `file`, which is open at `path`, is ours from now on, until it is closed. Who looks
    whether it is held locks it for a moment, and shared: that is no holder, and over soon. Raises:
    OSError where the file system locks nothing."""
    for _ in range(_MOST_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if is_held(path):
                return False
        else:
            return True
        time.sleep(_TRY_S)  # a wait for the lock itself could not tell a look from a holder
    return False


def lies_at(file: IO[str], path: Path) -> bool:
    """Whether the open `file` is what lies at `path`, neither deleted nor moved nor replaced.
    Raises: OSError where nobody can tell."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return False


def expand_home(path: Path | str) -> Path:
    """`~/x` → below the home directory. `~x`, where nobody has that name, stays as it is: then
    there is no such file, which is what its reader says (`Path.expanduser` raises RuntimeError)."""
    return Path(os.path.expanduser(path))


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = expand_home(path).absolute()
    while not path.is_dir():
        path = path.parent
    return path


def disk_bytes(folders: Iterable[Path]) -> int:
    """What all in them takes of the disk: holes take nothing. A daemon may be at work there: what
    goes meanwhile is not counted."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_blocks * 512
    return total


def child_environment() -> dict[str, str]:
    """Atom importable as it is here, no GPU, one arithmetic thread."""
    paths = [str(_ABOVE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
