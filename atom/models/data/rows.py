"""Rows of data files: JSON lines, JSON arrays, CSV, TSV, Parquet and Arrow, packed or not.

Only the wanted columns of a row are used, so the other columns may differ between files and rows.
Rows are read one after the other, so that a file may be larger than the memory; only a `.json` file
is read as a whole.
"""

import csv
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from atom.models.data.documents import (
    BYTES,
    UTF_8,
    characters,
    codec_of,
    inner_suffix,
    load_pyarrow,
    open_file,
)
from atom.models.source import DataError

Rows = Iterator[Any]
"""Rows in their order: a mapping of columns to values, or the ValueError of a row that is damaged.

Anything else is a JSON value that is no row.
"""
_ROWS_PER_READ = 256
_PARQUET, _ARROW = ".parquet", ".arrow"
_INCOMPLETE = "get the file again, or leave it out"


def is_data_file(path: Path) -> bool:
    """Return True for a file whose name says that it contains rows."""
    return inner_suffix(path) in (*_READERS, _PARQUET, _ARROW)


def rows_of(path: Path, encoding: str | None, wanted: Collection[str]) -> Rows:
    """Yield the rows of a data file.

    Args:
        path: the file.
        encoding: encoding of JSON and CSV files that are not UTF-8; None: there are none.
        wanted: columns to read; if a Parquet or Arrow file has none of them, all of its columns.

    Raises:
        DataError: the file is damaged, so that its later rows cannot be found.
        OSError: the file cannot be read.
    """
    suffix = inner_suffix(path)
    if suffix in (_PARQUET, _ARROW):
        yield from _arrow_rows(path, wanted)
        return
    codec = codec_of(path, encoding)
    texts = characters(path, UTF_8 if codec in (None, BYTES) else codec)
    row = 1
    try:
        for value in _READERS[suffix](texts):
            yield value
            row += 1
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        what = f"{path}, row {row} cannot be read: {error}"
        raise DataError(what, _INCOMPLETE) from error


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends; only "\\n" ends a line, unlike in `str.splitlines`."""
    held = list[str]()
    for text in texts:
        first, *others = text.split("\n")
        held.append(first)
        for line in others:
            yield "".join(held) + "\n"
            held = [line]
    if last := "".join(held):
        yield last


def _json_lines(texts: Iterable[str]) -> Rows:
    for line in _lines(texts):
        try:
            yield json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            yield ValueError(f"not JSON: {error}")


def _json(texts: Iterable[str]) -> Rows:
    """Yield the elements of a JSON array, the values of JSON lines, or the only object."""
    text = "".join(texts)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        return _json_lines([text])
    return iter(value if isinstance(value, list) else [value])


def _csv(texts: Iterable[str], separator: str = ",") -> Rows:
    """Yield the rows of a table whose first line names the columns."""
    csv.field_size_limit(sys.maxsize)
    for row in csv.DictReader(_lines(texts), delimiter=separator, strict=True):
        is_even = None not in row and None not in row.values()
        yield row if is_even else ValueError("another number of fields than in the first line")


def _arrow_rows(path: Path, wanted: Collection[str]) -> Rows:
    pyarrow = load_pyarrow(path)
    try:
        with open_file(path) as file:
            if inner_suffix(path) == _PARQUET:
                table = pyarrow.parquet.ParquetFile(file)
                columns = _wanted(table.schema_arrow.names, wanted)
                batches = table.iter_batches(_ROWS_PER_READ, columns=columns)
            else:
                table = pyarrow.ipc.open_stream(file)
                columns = _wanted(table.schema.names, wanted)
                batches = (batch.select(columns) for batch in table)
            for batch in batches:
                for row in batch.to_pylist():
                    yield {name: _without_nulls(value) for name, value in row.items()}
    except pyarrow.ArrowException as error:
        what = str(error).strip().partition("\n")[0]
        raise DataError(f"{path} cannot be read: {what}", _INCOMPLETE) from error


def _without_nulls(value: Any) -> Any:
    """Return a value without nulls in its objects: Arrow files fill missing keys with them."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _wanted(names: list[str], wanted: Collection[str]) -> list[str]:
    """Return the wanted columns, or all if there are none, so that the error can name them."""
    return [name for name in names if name in wanted] or names


_READERS: dict[str, Callable[[Iterable[str]], Rows]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, separator="\t"),
}
