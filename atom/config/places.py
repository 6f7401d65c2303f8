"""Default folders (XDG base directories), and resolution of the paths in configuration files."""

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
    """Return Atom's base folder: $XDG_DATA_HOME/atom, or ~/.local/share/atom, for "data".

    "data" holds one state directory per run; "cache" holds files that only save time.

    Raises:
        StorageError: neither the XDG variable nor a home directory is known.
    """
    named, below = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", "")), _BELOW_HOME[kind]
    if named.is_absolute():  # the XDG specification says to ignore relative paths
        return named / "atom"
    home = expand_home("~")
    if home == Path("~"):  # HOME is not set, and the system does not list this user
        raise StorageError(
            "this user has no home directory in which to keep files",
            "set HOME, or both XDG_DATA_HOME and XDG_CACHE_HOME",
        )
    return home / below / "atom"


def default_state_directory(run_name: str) -> Path:
    """Return the default state directory of a run's peer, without creating it.

    Raises:
        StorageError: no base folder is known.
    """
    return base_folder("data") / run_name


def named_state_directory(asked: Path | None, configured: str | None) -> Path | None:
    """Return the state directory that the user chose; None if the default applies.

    Args:
        asked: the command line's `--state`, which comes first.
        configured: the peer file's `[state] directory`.
    """
    return asked or (Path(configured) if configured else None)


def path_place(text: str, folder: Path) -> str:
    """Return `text` as an absolute path, relative ones starting from `folder`."""
    return str((folder / expand_home(text)).absolute())


def hub_place(text: str, folder: Path) -> str:
    """Return OWNER/NAME of a model or table on the hub as it is, other text as an absolute path.

    A file or folder of that name below `folder` takes precedence over the hub; a name that ends
    with ".json" is always a path.
    """
    place = path_place(text, folder)
    is_name = _HUB_NAME.fullmatch(text) and not text.startswith((".", "~"))
    return text if is_name and not text.endswith(".json") and not os.path.exists(place) else place


def text_place(text: str, folder: Path) -> str:
    """Return `text` as an absolute path or glob that starts from `folder`.

    Wildcard characters in the name of `folder` itself (`my [run]`) are escaped. A text that names
    an existing file is a path, even if it looks like a glob.
    """
    within, below = folder.absolute(), expand_home(text)
    path = within / below
    is_glob = glob.escape(text) != text and not os.path.exists(path)
    return str(Path(glob.escape(str(within))) / below if is_glob else path)


def tokenizer_place(text: str, folder: Path) -> str:
    """Return "bytes" as it is, any other text as an absolute path from `folder`."""
    return text if text == "bytes" else path_place(text, folder)


def _from_folder(place: Callable[[str, Path], str]) -> AfterValidator:
    """Return a validator that resolves paths from the folder of the file, if that is known.

    The folder is pydantic's validation context; without one, paths stay as written.
    """

    def anchored(text: str, info: ValidationInfo) -> str:
        return text if info.context is None else place(text, info.context)

    return AfterValidator(anchored)


LocalPath = Annotated[PathText, _from_folder(path_place)]
LocalTable = Annotated[PathText, _from_folder(hub_place)]
LocalText = Annotated[PathText, _from_folder(text_place)]
LocalTokenizer = Annotated[PathText, _from_folder(tokenizer_place)]
