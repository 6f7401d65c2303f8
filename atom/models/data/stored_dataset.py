"""Tables of Hugging Face `datasets`, from a local folder or the hub. Only this module imports it.

No code of a dataset is executed: the library dropped dataset scripts in its version 4.
"""

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import cast

from atom.base.errors import AddressError, ConfigError, StorageError, UserError
from atom.models.data.corpus import Corpus, file_documents, size_of_files
from atom.models.data.documents import Document, Omission
from atom.models.data.rows import RowText
from atom.models.source import needs_extra

DEFAULT_SPLIT = "train"
_SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that mark a folder written by `save_to_disk`: with one table, and with several."""


@dataclass(frozen=True)
class StoredDataset:
    """Identity of a table of `datasets`, and how its rows become text."""

    path: str
    """Absolute folder or file, or OWNER/NAME on the hub."""
    rows: RowText = field(default_factory=RowText)
    """Rules by which rows become text."""
    split: str = DEFAULT_SPLIT
    name: str | None = None
    """Configuration, for a table that has several."""
    revision: str | None = None
    """Commit on the hub, 40 hex digits."""

    @property
    def folder(self) -> Path | None:
        """Local folder or file of the table; None for a table on the hub."""
        return Path(self.path) if Path(self.path).is_absolute() else None

    def corpus(self, max_bytes: int | None = None) -> Corpus:
        """Return the table's rows as a corpus, of which at most `max_bytes` are used.

        Raises:
            ConfigError: the folder does not exist.
        """
        if self.folder and not self.folder.exists():
            hint = "name a folder, or OWNER/NAME on the hub"
            raise ConfigError(f"no such folder: {self.path}", hint)
        # The files are somewhat larger than their texts, which is good enough for a progress bar.
        files = [] if self.folder is None else [self.folder, *self.folder.rglob("*")]
        about_bytes = size_of_files(file for file in files if file.is_file())
        return Corpus(partial(_documents, self), max_bytes, about_bytes)


def _documents(stored: StoredDataset) -> Iterator[Document | Omission]:
    """Yield the documents of the rows, and the omitted rows and files. Raises: ConfigError."""
    folder = stored.folder
    if folder and folder.is_file():
        yield from file_documents(folder, stored.rows)
        return
    with _library_errors(stored):
        files, others = _files(stored)
    yield from (Omission("file that is not in the split", file) for file in others)
    for file in files:
        yield from file_documents(_fetched(stored, file), stored.rows)


def _files(stored: StoredDataset) -> tuple[list[str], list[str]]:
    """Return the files of the split, and the folder's other files.

    Raises:
        ConfigError: there is no such table or split, or it names files that are not its own.
    """
    folder = stored.folder.resolve() if stored.folder else None
    is_saved = folder is not None and any((folder / name).exists() for name in _SAVED)
    splits = _saved_splits(folder) if folder and is_saved else _library_splits(stored)
    own = f"{folder}/" if folder else f"hf://datasets/{stored.path}@"
    _check_files(stored, chain(*splits.values()), own)
    if stored.split not in splits:
        raise ConfigError(
            f'{stored.path}: no split "{stored.split}"; it has {", ".join(map(repr, splits))}',
            'name an existing one: [data] split = "…" in the run file',
        )
    used = splits[stored.split]
    return used, [] if folder is None or is_saved else _others(folder, used)


def _saved_splits(folder: Path) -> dict[str, list[str]]:
    """Return split → files of a folder that `save_to_disk` wrote: one table, or one per split.

    A single table may also be named by the default split, whatever split it was saved from.
    """
    splits = dict[str, list[str]]()
    for path in sorted(folder.rglob("state.json")):
        table, state = path.parent, json.loads(path.read_bytes())
        files = [os.path.join(table, file["filename"]) for file in state["_data_files"]]
        if table == folder:
            saved_from = str(state["_split"] or DEFAULT_SPLIT).partition("[")[0]
            return {DEFAULT_SPLIT: files, saved_from: files}
        splits[table.name] = files
    return splits


def _library_splits(stored: StoredDataset) -> dict[str, list[str]]:
    """Return split → files of a folder or a dataset on the hub, as the library finds them.

    Raises:
        ConfigError: the path names another kind of folder, or both a folder and a dataset.
    """
    folder = stored.folder
    if folder and (below := sorted(folder.rglob(_SAVED[0]))):
        raise ConfigError(
            f"{stored.path} is not a table, but contains tables such as {below[0].parent}",
            "name the folder of one of them: the library would merge all of them",
        )
    if not folder and Path(stored.path).exists():
        raise ConfigError(
            f"{stored.path} names a dataset on the hub, but also a path in the working directory",
            "start from another directory",
        )
    library = _library(stored.path)
    if not sys.stderr.isatty():
        library.disable_progress_bars()
    revision = None if folder else stored.revision
    builder = library.load_dataset_builder(stored.path, stored.name, revision=revision)
    found = builder.config.data_files or {}
    return {str(name): list(map(str, files)) for name, files in found.items()}


def _others(folder: Path, used: Sequence[str]) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {str(path) for path in files if not path.name.startswith((".", "README"))}
    return sorted(named - {*used})


def _fetched(stored: StoredDataset, file: str) -> Path:
    """Return the place of a file on this machine, and fetch it from the hub if needed."""
    if stored.folder:
        return Path(file)
    with _library_errors(stored):
        return Path(_library(stored.path).DownloadManager().download(file))


@contextmanager
def _library_errors(stored: StoredDataset) -> Iterator[None]:
    """Turn errors of the library within the context into a ConfigError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each file format and the network raise errors of their own
        if (number := getattr(error, "errno", None)) in (errno.ENOSPC, errno.EDQUOT):
            place = _library(stored.path).config.HF_DATASETS_CACHE
            raise StorageError(
                f"{stored.path} cannot be copied to {place}: {os.strerror(number)}",
                "free some space, or set HF_HOME to a folder on another disk",
            ) from error
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        what = f"{stored.path} cannot be read: {first_line}"
        if isinstance(error, ValueError):
            raise ConfigError(what, "see [data] split and name in the run file") from error
        if stored.folder:
            hint = "name a folder written by save_to_disk, or a folder of data files"
            raise ConfigError(what, hint) from error
        hint = "check its name and the network, then start again; or name a local folder instead"
        raise AddressError(what, hint) from error


def _check_files(stored: StoredDataset, named: Iterable[str], own: str) -> None:
    """Refuse a dataset that names files outside its own folder, or repository on the hub.

    Its files may name any other file, including private ones on this machine. The run's text goes
    to all peers, or leaves traces in the gradients that a peer sends.

    Args:
        stored: The dataset.
        named: Files that it names.
        own: Beginning of the names of its own files.

    Raises:
        ConfigError: the message names the first file that is not its own.
    """
    for file in named:
        if not (file.startswith(own) and "/../" not in file):
            raise ConfigError(
                f"the dataset {stored.path} names a file that is not its own: {file}",
                "use the dataset's current name on the hub, or another dataset",
            )


def _library(path: str) -> ModuleType:
    with needs_extra("data", path):
        import datasets
    return cast(ModuleType, datasets)
