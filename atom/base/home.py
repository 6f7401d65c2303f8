"""`~` in paths that people wrote, and how much of such a path is there."""

import os
from pathlib import Path


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
