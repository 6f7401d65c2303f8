"""A file that a process locks for life: the system lets go of it whatever ends the process."""

import fcntl
from pathlib import Path


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
