"""Tables of Hugging Face `datasets`, from a local folder or the hub. Only this module imports it.

No code of a dataset is executed: the library dropped dataset scripts in its version 4.
"""

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from atom.models.data.conversations import COLUMNS, ChatTemplate
from atom.models.data.corpus import Corpus, Document, row_document, size_of_files
from atom.models.source import DataError, DataUnreachable, NoRoomForData, install_extra

_ROWS_PER_READ = 256
_DEFAULT_SPLIT = "train"
_SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that mark a folder written by `save_to_disk`: with one table, and with several."""
_NAME_THE_TEXT = 'name the one that holds the text: [data] text_field = "…" in the run file'


@dataclass(frozen=True)
class StoredDataset:
    """Identity of a table of `datasets`, and how its rows become text."""

    path: str
    """Absolute folder, or OWNER/NAME on the hub."""
    text_field: str = "text"
    """Column that holds the text."""
    split: str = _DEFAULT_SPLIT
    name: str | None = None
    """Configuration, for a table that has several."""
    revision: str | None = None
    """Commit on the hub, 40 hex digits."""
    tokenizer: str = "bytes"
    """Path of the tokenizer.json whose chat template writes conversations, or "bytes"."""
    answers: bool = False
    """True: rows are conversations, and their answers are to be marked."""

    @property
    def folder(self) -> Path | None:
        """Local folder of the table; None for a table on the hub."""
        return Path(self.path) if Path(self.path).is_absolute() else None

    def corpus(self, max_bytes: int | None = None) -> Corpus:
        """Return the table's rows as a corpus, of which at most `max_bytes` are used.

        Raises:
            DataError: the folder does not exist.
        """
        if self.folder and not self.folder.is_dir():
            hint = "name a folder, or OWNER/NAME on the hub"
            raise DataError(f"no such folder: {self.path}", hint)
        # The files are somewhat larger than their texts, which is good enough for a progress bar.
        about_bytes = size_of_files(self.folder.rglob("*")) if self.folder else 0
        return Corpus(partial(_documents, self), max_bytes, about_bytes)


def _documents(stored: StoredDataset) -> Iterator[Document]:
    """Yield a document for each row, except rows with null in a column. Raises: DataError."""
    template: ChatTemplate | None = None
    for number, row in enumerate(_rows(stored), start=1):
        where = f"{stored.path}, row {number} of {stored.split}"
        if None in row.values():
            continue
        if stored.text_field not in row or stored.answers:
            template = template or ChatTemplate(stored.tokenizer)
            yield row_document(where, template.document(row, where, stored.answers))
            continue
        text = row[stored.text_field]
        if not isinstance(text, str):
            what = f'"{stored.text_field}" holds {type(text).__name__}, not a text'
            raise DataError(f"{where}: {what}", _NAME_THE_TEXT)
        yield row_document(where, text.encode())


def _rows(stored: StoredDataset) -> Iterator[dict[str, Any]]:
    """Yield the relevant columns of each row. Raises: DataError."""
    if stored.folder and _all_empty(stored.folder):
        return  # the library would raise a bare StopIteration
    try:
        table = _table(stored)
        columns = _columns(stored, table.column_names)
        for rows in table.select_columns(columns).iter(batch_size=_ROWS_PER_READ):
            for values in zip(*(rows[name] for name in columns), strict=True):
                yield dict(zip(columns, values, strict=True))
    except DataError:
        raise
    except Exception as error:  # each file format and the network raise errors of their own
        raise _data_error(stored, error) from error


def _columns(stored: StoredDataset, names: list[str]) -> list[str]:
    """Choose the columns to read: the text, or a conversation. Raises: DataError."""
    if stored.text_field in names and not stored.answers:
        return [stored.text_field]
    chats = [list(columns) for columns in COLUMNS if set(columns) <= set(names)]
    if chats:
        return chats[0]
    has = ", ".join(map(repr, names[:8]))
    if stored.answers:
        hint = "conversations need a column messages, or columns prompt and completion"
        raise DataError(f"{stored.path} has rows without answers: {has}", hint)
    what = f'no column "{stored.text_field}"; it has {has}'
    raise DataError(f"{stored.path}: {what}", _NAME_THE_TEXT)


def _all_empty(folder: Path) -> bool:
    """Return True if the folder has files and all of them are empty."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return bool(files) and size_of_files(files) == 0


def _table(stored: StoredDataset) -> Any:
    library = _library(stored.path)
    if not sys.stderr.isatty():
        library.disable_progress_bars()
    if stored.folder and any((stored.folder / name).exists() for name in _SAVED):
        _check_files(stored, _named_by_saved(stored.folder), f"{stored.folder}/")
        table = _split_of(library.load_from_disk(stored.path), stored)
        # A saved table keeps an output format, which may convert rows and hide columns.
        return table.with_format(None)
    if stored.folder and (below := sorted(stored.folder.rglob(_SAVED[0]))):
        raise DataError(
            f"{stored.path} is not a table, but contains tables such as {below[0].parent}",
            "name the folder of one of them: the library would merge all of them",
        )
    if not stored.folder and Path(stored.path).exists():
        raise DataError(
            f"{stored.path} names a dataset on the hub, but also a path in the working directory",
            "start from another directory",
        )
    revision = None if stored.folder else stored.revision
    builder = library.load_dataset_builder(stored.path, stored.name, revision=revision)
    own = f"{stored.folder.resolve()}/" if stored.folder else f"hf://datasets/{stored.path}@"
    files = (builder.config.data_files or {}).values()
    _check_files(stored, (str(file) for each in files for file in each), own)
    builder.download_and_prepare()
    return builder.as_dataset(split=stored.split)


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
    error = _unwrapped(error)
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


def _unwrapped(error: Exception) -> Exception:
    """Return the cause of the library's generic DatasetGenerationError, else the error itself."""
    wrapped = type(error).__name__.startswith("DatasetGeneration")
    cause = error.__cause__ if wrapped else None
    return cause if isinstance(cause, Exception) else error


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
