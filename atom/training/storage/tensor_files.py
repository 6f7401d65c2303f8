"""Safetensors files that are whole or not there: written aside, then renamed."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError
from atom.base.leftover import remove_leftover

_ASIDE = ".partial"


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    synced: bool = False,
) -> None:
    """Puts the tensors in `path`, in place of what is there. `synced`: they survive a power cut.

    Raises: StorageError when the disk is full or gone.
    """
    aside = path.with_suffix(_ASIDE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), aside, metadata=dict(metadata or {}))
        if synced:
            sync(aside)
        os.replace(aside, path)
    except (OSError, SafetensorError) as problem:
        remove_leftover(aside)
        raise not_written(path, problem) from problem


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name, mapped from the file: read when used, even once its name is gone.

    Raises: StorageError if it is no whole file of tensors.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise StorageError(
            f"{path} cannot be read: {problem}", "delete it; the peer fetches it from the swarm"
        ) from problem


def sync(path: Path) -> None:
    """Takes as long as the disk does. Raises: OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def remove_partial(folder: Path) -> None:
    """What a crash left half-written."""
    for path in folder.glob(f"*{_ASIDE}"):
        remove_leftover(path)


def not_written(path: Path, problem: Exception) -> StorageError:
    return StorageError(
        f"cannot write {path}: {why_not_written(problem)}",
        "free some disk space, and look at the disk; what is missing is fetched from others",
    )
