"""Where things are kept when nobody said where, the XDG base directories, or StorageError if there
are none; and where texts and tables lie that a file names."""

import glob
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo

from atom.base.errors import StorageError
from atom.base.files import expand_home
from atom.config.section import PathText

_BELOW_HOME = {"data": ".local/share", "cache": ".cache"}
_HUB_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


def base_folder(kind: Literal["data", "cache"]) -> Path:
    """$XDG_DATA_HOME/atom, or ~/.local/share/atom: with a state directory for each run. What is
    in `cache` only saves time."""
    named, below = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", "")), _BELOW_HOME[kind]
    if named.is_absolute():  # the specification: a relative path in these is to be ignored
        return named / "atom"
    home = expand_home("~")
    if home == Path("~"):  # HOME is not set, and the system has no entry of the user
        raise StorageError(
            "this user has no home directory, in which things could be kept",
            "set HOME, or both XDG_DATA_HOME and XDG_CACHE_HOME",
        )
    return home / below / "atom"


def default_state_directory(run_name: str) -> Path:
    """Where a peer of this run keeps its state unless told otherwise. Created by nobody here."""
    return base_folder("data") / run_name


def named_state_directory(asked: Path | None, configured: str | None) -> Path | None:
    """Where a peer keeps its state: as the command line says, else its peer file (`[state]
    directory`). None: neither does, and it is where such a peer usually has it."""
    return asked or (Path(configured) if configured else None)


def path_place(text: str, folder: Path) -> str:
    """An absolute path from `folder`."""
    return str((folder / expand_home(text)).absolute())


def table_place(text: str, folder: Path) -> str:
    """OWNER/NAME as it is, unless there is such a folder; else an absolute path from `folder`."""
    place = path_place(text, folder)
    return text if _is_hub_name(text) and not os.path.isdir(place) else place


def model_place(text: str, folder: Path) -> str:
    """OWNER/NAME of the hub as it is, unless there is such a file; else an absolute path."""
    place = path_place(text, folder)
    named = _is_hub_name(text) and not text.endswith(".json")
    return text if named and not os.path.exists(place) else place


def _is_hub_name(text: str) -> bool:
    return bool(_HUB_NAME.fullmatch(text)) and not text.startswith((".", "~"))


def text_place(text: str, folder: Path) -> str:
    """An absolute path from `folder`, or a glob below it: what looks like one in the folder's own
    name (`my [run]`) is none."""
    within, below = folder.absolute(), expand_home(text)
    path = within / below
    is_glob = glob.escape(text) != text and not os.path.exists(path)
    return str(Path(glob.escape(str(within))) / below if is_glob else path)


def tokenizer_place(text: str, folder: Path) -> str:
    """ "bytes", or an absolute path from `folder`."""
    return text if text == "bytes" else path_place(text, folder)


def _from_folder(place: Callable[[str, Path], str]) -> AfterValidator:
    """Where the folder is known that the file lies in, its paths begin there."""

    def anchored(text: str, info: ValidationInfo) -> str:
        return text if info.context is None else place(text, info.context)

    return AfterValidator(anchored)


LocalPath = Annotated[PathText, _from_folder(path_place)]
LocalTable = Annotated[PathText, _from_folder(table_place)]
LocalText = Annotated[PathText, _from_folder(text_place)]
LocalTokenizer = Annotated[PathText, _from_folder(tokenizer_place)]
