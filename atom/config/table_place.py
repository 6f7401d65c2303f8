"""Whether a table is a folder here, or one of the hub."""

import re
from pathlib import Path

from atom.base.home import expand_home

_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


def table_place(text: str, folder: Path) -> str:
    """OWNER/NAME as it is, unless there is such a folder; else an absolute path from `folder`."""
    path = (folder / expand_home(text)).absolute()
    named = _HUB_NAME.fullmatch(text) and not text.startswith((".", "~"))
    return text if named and not path.is_dir() else str(path)
