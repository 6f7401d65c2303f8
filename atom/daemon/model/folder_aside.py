"""A folder that is written aside, and takes its place when it is whole."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atom.base.errors import StorageError
from atom.base.units import format_bytes


def require_new(target: Path) -> None:
    """Raises: StorageError unless `target` can be made."""
    if os.path.lexists(target):
        raise StorageError(f"{target} is already there", "name a new folder")
    above = next(each for each in target.parents if os.path.lexists(each))
    if not above.is_dir():
        raise StorageError(f"{above} is a file, not a folder", "choose another folder")


@contextmanager
def folder_aside(target: Path, need_bytes: int) -> Iterator[Path]:
    """A folder that becomes `target` (absolute, not there yet) if all goes well, and is gone
    otherwise.

    Raises: StorageError where the disk is full, or may not be written, or another export to the
    same place is at work, or was killed.
    """
    aside = target.parent / f".{target.name}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _require_space(target.parent, need_bytes)
        aside.mkdir()
    except FileExistsError as problem:
        raise StorageError(
            f"{aside} is there: another export writes it, or one was killed while it did",
            "remove it if none is at work",
        ) from problem
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    try:
        yield aside
        for path in aside.rglob("*"):  # the library writes files that only their owner may read
            path.chmod(0o666 & ~_umask())
        os.replace(aside, target)
    except OSError as problem:
        raise _unwritable(target, problem) from problem
    finally:  # also when interrupted
        shutil.rmtree(aside, ignore_errors=True)


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
