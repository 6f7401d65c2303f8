"""Where things are kept when nobody said where: the XDG base directories. Each raises StorageError
where neither the environment nor the system knows."""

import os
from pathlib import Path

from atom.base.home import home_directory


def state_home() -> Path:
    """The folder with one state directory per run: $XDG_DATA_HOME/atom, or ~/.local/share/atom."""
    return _base("XDG_DATA_HOME", ".local/share") / "atom"


def default_state_directory(run_name: str) -> Path:
    """Where a peer of this run keeps its state unless told otherwise. Created by nobody here."""
    return state_home() / run_name


def named_state_directory(asked: Path | None, configured: str | None) -> Path | None:
    """Where a peer keeps its state: as the command line says, else its peer file (`[state]
    directory`). None: neither does, and it is where such a peer usually has it."""
    return asked or (Path(configured) if configured else None)


def bootstrap_state_directory() -> Path:
    """Where a bootstrap node keeps its key; no run's name starts with an underscore."""
    return state_home() / "_bootstrap"


def cache_directory() -> Path:
    """What only saves time, and may be deleted: $XDG_CACHE_HOME/atom, or ~/.cache/atom."""
    return _base("XDG_CACHE_HOME", ".cache") / "atom"


def turns_directory() -> Path:
    """Where the daemons of this user meet that share a device: $XDG_STATE_HOME/atom/turns."""
    return _base("XDG_STATE_HOME", ".local/state") / "atom" / "turns"


def _base(variable: str, below_home: str) -> Path:
    # The specification: a relative path in these variables is to be ignored.
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else home_directory() / below_home
