"""Where texts and tables lie that a run or peer file names."""

import glob
import os
import re
from pathlib import Path

from atom.base.home import expand_home

_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


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
