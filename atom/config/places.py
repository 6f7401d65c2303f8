"""Where things are kept when nobody said where: the XDG base directories, of which each raises
StorageError where neither the environment nor the system knows; and where texts and tables lie that
a file names."""

import glob
import os
import re
from pathlib import Path

from atom.base.home import expand_home, home_directory

_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


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


def table_place(text: str, folder: Path) -> str:
    """OWNER/NAME as it is, unless there is such a folder; else an absolute path from `folder`."""
    path = (folder / expand_home(text)).absolute()
    named = _HUB_NAME.fullmatch(text) and not text.startswith((".", "~"))
    return text if named and not path.is_dir() else str(path)


def text_place(text: str, folder: Path) -> str:
    """An absolute path from `folder`, or a glob below it: what looks like one in the folder's own
    name (`my [run]`) is none."""
    within, below = folder.absolute(), expand_home(text)
    path = within / below
    is_glob = glob.escape(text) != text and not os.path.exists(path)
    return str(Path(glob.escape(str(within))) / below if is_glob else path)


def _base(variable: str, below_home: str) -> Path:
    # The specification: a relative path in these variables is to be ignored.
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else home_directory() / below_home
