"""The file that a DHT node's own words go to. It stays small, though nobody here writes them."""

import contextlib
import os
from pathlib import Path
from typing import IO

from atom.base.errors import StorageError
from atom.base.events import older_log

MAX_LOG_BYTES = 8 << 20
"""Of each of the two files that there may be."""


def open_node_log(path: str | None) -> IO[bytes]:
    """For a node that is about to start; None: its words go nowhere. Raises: StorageError."""
    keep_small(path)
    try:
        return open(path or os.devnull, "ab")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", "check the folder") from None


def keep_small(path: str | None, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Sets the end of a full log aside as its `older_log`, in the place of the one before.

    The file is emptied, not renamed: the node holds it open, and goes on at its new end. Never
    fails; where the disk is full, the old words are lost and there is room again.
    """
    if path is None:
        return
    with contextlib.suppress(OSError), open(path, "r+b") as file:
        if file.seek(0, os.SEEK_END) <= max_bytes:
            return
        file.seek(-max_bytes, os.SEEK_END)
        words = file.read(max_bytes)
        file.truncate(0)
        older_log(Path(path)).write_bytes(words)
