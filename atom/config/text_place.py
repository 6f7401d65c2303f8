"""Where texts lie that a run or peer file names."""

import glob
import os
from pathlib import Path

from atom.base.home import expand_home


def text_place(text: str, folder: Path) -> str:
    """An absolute path from `folder`, or a glob below it: what looks like one in the folder's own
    name (`my [run]`) is none."""
    within, below = folder.absolute(), expand_home(text)
    path = within / below
    is_glob = glob.escape(text) != text and not os.path.exists(path)
    return str(Path(glob.escape(str(within))) / below if is_glob else path)
