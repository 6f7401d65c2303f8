"""The door to `datasets` of Hugging Face: tables of a local folder, or of the hub.

Nothing of a dataset is run: the library dropped scripts in its version 4.
"""

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from atom.models.data.conversations import COLUMNS, ChatTemplate
from atom.models.data.corpus import Corpus, Document, row_document
from atom.models.data.files import size_of_files
from atom.models.installing import install_extra
from atom.models.source import DataError, DataUnreachable, NoRoomForData

_ROWS_TOGETHER = 256
_DEFAULT_SPLIT = "train"
_SAVED = ("dataset_info.json", "dataset_dict.json")
"""One of these lies in a folder that `save_to_disk` wrote: the first, where it holds one table."""
_NAME_THE_TEXT = 'name the one that holds the text: [data] text_field = "…" in the run file'


@dataclass(frozen=True)
class StoredDataset:
    """Which table is read."""

    path: str
    """An absolute folder, or OWNER/NAME on the hub."""
    text_field: str = "text"
    split: str = _DEFAULT_SPLIT
    name: str | None = None
    """One of several configurations."""
    revision: str | None = None
    """A commit of the hub."""
    tokenizer: str = "bytes"
    """Whose chat template writes conversations."""
    answers: bool = False
    """Rows are conversations, in which answers are marked."""

    @property
    def folder(self) -> Path | None:
        """None: it is one of the hub."""
        return Path(self.path) if Path(self.path).is_absolute() else None

    def corpus(self, max_bytes: int | None = None) -> Corpus:
        """Raises: DataError if a folder is not there."""
        if self.folder and not self.folder.is_dir():
            hint = "name a folder, or OWNER/NAME of the hub"
            raise DataError(f"no such folder: {self.path}", hint)
        # Tables in memory form, or files that hold texts: more than the texts, but not much.
        about_bytes = size_of_files(self.folder.rglob("*")) if self.folder else 0
        return Corpus(partial(_documents, self), max_bytes, about_bytes)


def _documents(stored: StoredDataset) -> Iterator[Document]:
    """Of the rows that hold a text; null is none. Raises: DataError."""
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
    """What each row has in the columns that matter."""
    if stored.folder and _all_empty(stored.folder):
        return  # the library would say "StopIteration", and no more
    try:
        table = _table(stored)
        columns = _columns(stored, table.column_names)
        for rows in table.select_columns(columns).iter(batch_size=_ROWS_TOGETHER):
            for values in zip(*(rows[name] for name in columns), strict=True):
                yield dict(zip(columns, values, strict=True))
    except DataError:
        raise
    except Exception as error:  # as many kinds as there are formats, and ways to the hub
        raise _told(stored, error) from error


def _columns(stored: StoredDataset, names: list[str]) -> list[str]:
    """Raises: DataError."""
    if stored.text_field in names and not stored.answers:
        return [stored.text_field]
    chats = [list(columns) for columns in COLUMNS if set(columns) <= set(names)]
    if chats:
        return chats[0]
    has = ", ".join(map(repr, names[:8]))
    if stored.answers:
        hint = "they are conversations with a column messages, or with prompt and completion"
        raise DataError(f"{stored.path} has rows without answers: {has}", hint)
    what = f'no column "{stored.text_field}"; it has {has}'
    raise DataError(f"{stored.path}: {what}", _NAME_THE_TEXT)


def _all_empty(folder: Path) -> bool:
    """Whether it has files, and not a byte in them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return bool(files) and size_of_files(files) == 0


def _table(stored: StoredDataset) -> Any:
    library = _library(stored.path)
    if not sys.stderr.isatty():
        library.disable_progress_bars()
    if stored.folder and any((stored.folder / name).exists() for name in _SAVED):
        table = _split_of(library.load_from_disk(stored.path), stored)
        # It was saved with the form in which its rows are given, and perhaps without some columns.
        return table.with_format(None)
    if stored.folder and (below := sorted(stored.folder.rglob(_SAVED[0]))):
        raise DataError(
            f"{stored.path} is no table; saved tables lie below it, such as {below[0].parent}",
            "name the folder of one of them: the library would take all of them together",
        )
    if not stored.folder and Path(stored.path).exists():
        raise DataError(
            f"{stored.path} is a dataset of the hub, and something else in this folder",
            "start from another folder",
        )
    revision = None if stored.folder else stored.revision
    builder = library.load_dataset_builder(stored.path, stored.name, revision=revision)
    if not stored.folder:
        _check_files(builder, stored)
    builder.download_and_prepare()
    return builder.as_dataset(split=stored.split)


def _check_files(builder: Any, stored: StoredDataset) -> None:
    """The page of a hub's dataset may name any file, also of the machine that reads it: what a peer
    trains on leaves traces in what it sends, so only the dataset's own files are opened."""
    own = f"hf://datasets/{stored.path}@"
    for files in (builder.config.data_files or {}).values():
        for file in files:
            if not str(file).startswith(own):
                raise DataError(
                    f"the hub's dataset {stored.path} names a file that is not its own: {file}",
                    "use its present name on the hub, or another dataset",
                )


def _split_of(saved: Any, stored: StoredDataset) -> Any:
    """Of several tables the one that is asked for; of the only one: who asks for nothing else gets
    it, whatever it is a split of."""
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
        'name one that is there: [data] split = "…" in the run file',
    )


def _told(stored: StoredDataset, error: Exception) -> DataError:
    error = _meant(error)
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        place = _library(stored.path).config.HF_DATASETS_CACHE
        return NoRoomForData(
            f"{stored.path} cannot be copied to {place}: {os.strerror(number)}",
            "free some space, or set HF_HOME to a folder on another disk",
        )
    what = f"{stored.path} cannot be read: {_first_line(error)}"
    if isinstance(error, IndexError):  # what the library does with a saved table of no rows
        what = f"{stored.path} has no rows, or some of its files are missing"
    if isinstance(error, ValueError):
        return DataError(what, "see [data] split and name in the run file")
    if stored.folder:
        return DataError(what, "it is to be a folder of save_to_disk, or of data files")
    hint = "check its name and the network, then start again; a folder here may stand in its place"
    return DataUnreachable(what, hint)


def _meant(error: Exception) -> Exception:
    """The library wraps what went wrong in a word that it did."""
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
