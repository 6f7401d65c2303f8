"""A file that a command was asked to write: whole, or not there."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError
from atom.cli.shell.signals import raise_on_signals


def refuse_folders(file: Path, example: str) -> None:
    """Before anybody waits. Raises: StorageError."""
    if file.is_dir():
        raise StorageError(f"{file} is a folder", f"name a file, such as {example}")
    if not file.absolute().parent.is_dir():
        raise StorageError(f"there is no folder {file.parent}", "choose another place")


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """`write` is given a place aside, which then takes `file`'s. Raises: StorageError; what
    `raise_on_signals` does, from here on."""
    raise_on_signals()
    aside = file.with_name(f".partial-{file.name}")
    try:
        write(aside)
        aside.replace(file)
    except BaseException as problem:  # also when interrupted: nothing of ours stays
        with suppress(OSError):
            aside.unlink()
        if not isinstance(problem, OSError):
            raise
        raise StorageError(
            f"cannot write {file}: {why_not_written(problem)}", "choose another place"
        ) from problem
