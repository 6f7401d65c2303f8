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
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from atom.models.data.corpus import Corpus, file_documents, size_of_files
from atom.models.data.documents import Document, Omission
from atom.models.data.row_text import RowText
from atom.models.data.rows import Rows
from atom.models.source import DataError, DataUnreachable, NoRoomForData, install_extra

_DEFAULT_SPLIT = "train"
_SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that mark a folder written by `save_to_disk`: with one table, and with several."""


@dataclass(frozen=True)
class StoredDataset:
    """Identity of a table of `datasets`, and how its rows become text."""

    path: str
    """Absolute folder or file, or OWNER/NAME on the hub."""
    rows: RowText = field(default_factory=RowText)
    """Rules by which rows become text."""
    split: str = _DEFAULT_SPLIT
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
            DataError: the folder does not exist.
        """
        if self.folder and not self.folder.exists():
            hint = "name a folder, or OWNER/NAME on the hub"
            raise DataError(f"no such folder: {self.path}", hint)
        # The files are somewhat larger than their texts, which is good enough for a progress bar.
        files = [] if self.folder is None else [self.folder, *self.folder.rglob("*")]
        about_bytes = size_of_files(file for file in files if file.is_file())
        return Corpus(partial(_documents, self), max_bytes, about_bytes)


def _documents(stored: StoredDataset) -> Iterator[Document | Omission]:
    """Yield the documents of the rows, and the omitted rows and files. Raises: DataError."""
    folder = stored.folder
    if folder and folder.is_file():
        yield from file_documents(folder, stored.rows)
    elif folder and any((folder / name).exists() for name in _SAVED):
        name = f"{stored.path}, row {{}} of {stored.split}".format
        yield from stored.rows.of_rows(_saved_rows(stored), name, stored.path)
    else:
        files, others = _files(stored)
        yield from (Omission("file that is not in the split", file) for file in others)
        for file in files:
            yield from file_documents(_fetched(stored, file), stored.rows)


def _saved_rows(stored: StoredDataset) -> Rows:
    """Yield the wanted columns of each row of a folder that `save_to_disk` wrote.

    Raises:
        DataError: the folder is not complete, or has no such split.
    """
    with _library_errors(stored):
        _check_files(stored, _named_by_saved(Path(stored.path)), f"{stored.path}/")
        # A saved table keeps an output format, which may convert rows and hide columns.
        table = _split_of(_library(stored.path).load_from_disk(stored.path), stored)
        table = table.with_format(None)
        wanted = [name for name in table.column_names if name in stored.rows.wanted]
        yield from table.select_columns(wanted or table.column_names)


def _files(stored: StoredDataset) -> tuple[list[str], list[str]]:
    """Return the files of the split, as the library finds them, and the folder's other files.

    Raises:
        DataError: there is no such table or split, or it names files that are not its own.
    """
    folder = stored.folder
    if folder and (below := sorted(folder.rglob(_SAVED[0]))):
        raise DataError(
            f"{stored.path} is not a table, but contains tables such as {below[0].parent}",
            "name the folder of one of them: the library would merge all of them",
        )
    if not folder and Path(stored.path).exists():
        raise DataError(
            f"{stored.path} names a dataset on the hub, but also a path in the working directory",
            "start from another directory",
        )
    library = _library(stored.path)
    if not sys.stderr.isatty():
        library.disable_progress_bars()
    with _library_errors(stored):
        revision = None if folder else stored.revision
        builder = library.load_dataset_builder(stored.path, stored.name, revision=revision)
    found = builder.config.data_files or {}
    splits = {str(name): list(map(str, files)) for name, files in found.items()}
    own = f"{folder.resolve()}/" if folder else f"hf://datasets/{stored.path}@"
    _check_files(stored, (file for files in splits.values() for file in files), own)
    if stored.split not in splits:
        raise DataError(
            f'{stored.path}: no split "{stored.split}"; it has {", ".join(map(repr, splits))}',
            'name an existing one: [data] split = "…" in the run file',
        )
    used = splits[stored.split]
    return used, [] if folder is None else _others(folder.resolve(), used)


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
    """Turn errors of the library within the context into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # each file format and the network raise errors of their own
        raise _data_error(stored, error) from error


def _check_files(stored: StoredDataset, named: Iterable[str], own: str) -> None:
    """Refuse a dataset that names files outside its own folder, or repository on the hub.

    Its files may name any other file, including private ones on this machine. The run's text goes
    to all peers, or leaves traces in the gradients that a peer sends.

    Args:
        stored: The dataset.
        named: Files that it names.
        own: Beginning of the names of its own files.

    Raises:
        DataError: the message names the first file that is not its own.
    """
    for file in named:
        if not (file.startswith(own) and "/../" not in file):
            raise DataError(
                f"the dataset {stored.path} names a file that is not its own: {file}",
                "use the dataset's current name on the hub, or another dataset",
            )


def _named_by_saved(folder: Path) -> Iterator[str]:
    """Yield the files that a saved table names, as the library joins their paths."""
    for path in folder.rglob("state.json"):
        for file in json.loads(path.read_bytes())["_data_files"]:
            yield os.path.join(path.parent, file["filename"])


def _split_of(saved: Any, stored: StoredDataset) -> Any:
    """Return the wanted split of a saved dataset.

    A folder with a single table returns it if the wanted split is the default one, whatever split
    the table was saved from.

    Raises:
        DataError: there is no such split.
    """
    if isinstance(saved, dict):
        if stored.split in saved:
            return saved[stored.split]
        has = f"it has {', '.join(map(repr, saved))}"
    else:
        known = "" if saved.split is None else str(saved.split)
        if not known or stored.split in (_DEFAULT_SPLIT, known.partition("[")[0]):
            return saved
        has = f'it holds one table, of the split "{known}"'
    raise DataError(
        f'{stored.path}: no split "{stored.split}"; {has}',
        'name an existing one: [data] split = "…" in the run file',
    )


def _data_error(stored: StoredDataset, error: Exception) -> DataError:
    """Return the error with which to report an exception of the library."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        place = _library(stored.path).config.HF_DATASETS_CACHE
        return NoRoomForData(
            f"{stored.path} cannot be copied to {place}: {os.strerror(number)}",
            "free some space, or set HF_HOME to a folder on another disk",
        )
    what = f"{stored.path} cannot be read: {_first_line(error)}"
    if isinstance(error, IndexError):  # the library's answer to a saved table without rows
        what = f"{stored.path} has no rows, or some of its files are missing"
    if isinstance(error, ValueError):
        return DataError(what, "see [data] split and name in the run file")
    if stored.folder:
        return DataError(what, "name a folder written by save_to_disk, or a folder of data files")
    hint = "check its name and the network, then start again; or name a local folder instead"
    return DataUnreachable(what, hint)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _library(path: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{path} needs the package `datasets`", f"`{install_extra('data')}`"
        ) from error
    return cast(ModuleType, datasets)
