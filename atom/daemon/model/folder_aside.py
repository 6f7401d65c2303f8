"""A folder that is written aside, and takes its place when it is whole.

One that was broken off is not gone on with: it was copied from disk to disk, and by the next time
there is a newer snapshot, as a rule. Nothing of it stays.
"""

import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atom.base.errors import StorageError
from atom.base.held_file import is_held
from atom.base.units import format_bytes

_HELD, _WHOLE = "held", "whole"
"""Within what lies aside: a file that is locked while somebody writes, and the folder itself."""


def require_free(target: Path) -> None:
    """Raises: StorageError unless the target can be a new folder: nothing is renamed into the place
    of a link, of another disk's root, or of the folder that somebody's shell is in, where it would
    not be seen."""
    try:
        _refuse_what_is_there(target)
    except OSError as problem:
        raise _unwritable(target, problem) from problem


def _refuse_what_is_there(target: Path) -> None:
    """Raises: StorageError; OSError."""
    if target.is_symlink():
        raise StorageError(f"{target} is a link", "name the folder that it leads to")
    if target.is_mount():
        raise StorageError(
            f"{target} is where a disk or a volume is mounted, and the folder is made anew",
            f"name one in it, such as {target / 'model'}",
        )
    there = next(each for each in (target, *target.parents) if each.exists())
    if not there.is_dir():
        raise StorageError(f"{there} is a file, not a folder", "choose another folder")
    if target.is_dir() and any(target.iterdir()):
        raise StorageError(f"{target} is not empty", "choose another folder, or empty that one")
    if target.is_dir() and target.samefile(os.curdir):
        raise StorageError(
            f"{target} is the folder that you are in, and it is made anew",
            f"name one in it, such as {target / 'model'}",
        )


@contextmanager
def folder_aside(target: Path, need_bytes: int) -> Iterator[Path]:
    """A folder that becomes `target` (absolute) if all goes well, and is gone otherwise.

    Raises: StorageError where the disk is full, or may not be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        _require_space(target.parent, need_bytes)
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    # Named before it is made: who is interrupted right then knows what to take away.
    aside = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    whole = aside / _WHOLE
    try:
        aside.mkdir(0o700)
        with (aside / _HELD).open("w") as held:
            with suppress(OSError):  # there are file systems that lock nothing
                fcntl.flock(held, fcntl.LOCK_EX)
            whole.mkdir()
            yield whole
        for path in (whole, *whole.rglob("*")):  # others may read it, as any file
            path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())
        os.replace(whole, target)
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    finally:  # also when interrupted
        shutil.rmtree(aside, ignore_errors=True)


def _clear_abandoned(target: Path) -> None:
    """What those left who were killed while they wrote the same folder."""
    for held in target.parent.glob(f".{glob.escape(target.name)}.????????.partial/{_HELD}"):
        with suppress(OSError):  # where nobody can tell, it stays
            if not is_held(held):
                shutil.rmtree(held.parent, ignore_errors=True)


def _require_space(folder: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if need_bytes > free:
        raise StorageError(
            f"the weights take {format_bytes(need_bytes)}, {format_bytes(free)} are free in "
            f"{folder}",
            "free some space, choose a folder on another disk, or --precision bfloat16",
        )


def _unwritable(target: Path, problem: OSError) -> StorageError:
    return StorageError(
        f"cannot write {target}: {problem.strerror}", "free some space, or choose another folder"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
