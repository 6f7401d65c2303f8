"""Files on a user's disk: held by a process for life, left over, or not written, and why."""

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path
from typing import IO

_NUMBER = re.compile(r"os error ([0-9]+)")
_MOST_TRIES, _TRY_S = 100, 0.02


def why_not_written(problem: Exception) -> str:
    """Of an OSError, or of what a library made of one: safetensors keeps its number in words."""
    number = getattr(problem, "errno", None)
    if number is None and (told := _NUMBER.search(str(problem))):
        number = int(told[1])
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
