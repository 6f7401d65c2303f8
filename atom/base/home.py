"""`~` in paths that people wrote."""

import os
from pathlib import Path


def expand_home(path: Path | str) -> Path:
    """`~/x` → below the home directory. `~x`, where nobody has that name, stays as it is: then
    there is no such file, which is what its reader says (`Path.expanduser` raises RuntimeError)."""
    return Path(os.path.expanduser(path))
