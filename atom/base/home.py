"""What is around a process: the user's home, with `~` in paths that people wrote, and what the
processes that it starts find around them."""

import os
from pathlib import Path

_ABOVE = Path(__file__).resolve().parents[2]
"""The folder that `atom` lies in."""


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


def child_environment() -> dict[str, str]:
    """Atom importable as it is here, no GPU, one arithmetic thread."""
    paths = [str(_ABOVE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
