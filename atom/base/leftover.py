"""Files that nobody needs any more."""

import contextlib
from pathlib import Path


def remove_leftover(path: Path) -> None:
    """Where the disk does not take that either, as one that has become read-only, it stays: whoever
    tidies up has other cares, or a failure of its own to tell. Raises: nothing."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
