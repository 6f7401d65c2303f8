"""A file that a process locks for life: the system lets go of it whatever ends the process."""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

_MOST_TRIES, _TRY_S = 100, 0.02


def is_held(path: Path) -> bool:
    """Whether somebody holds it, this process included. Raises: OSError where nobody can tell."""
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
