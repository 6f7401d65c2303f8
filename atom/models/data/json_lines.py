"""JSON lines: one object per line, one of its fields a document. Plain or packed."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from atom.models.data.corpus import DataError, RecordDocument

_MAX_LINE_BYTES = 1 << 28
"""A file without line ends must not fill the memory."""


def json_lines_documents(path: Path, text_field: str) -> Iterator[RecordDocument]:
    """The text of each line's `text_field`; null and lines of blanks are no documents.

    Raises: DataError naming the file and the line; OSError if the file cannot be read.
    """
    with contextlib.closing(_open(path)) as file:
        for number, line in enumerate(_lines(file, path), start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            text = field_text(_object(line, where), text_field, where)
            if text is not None:
                yield RecordDocument(where, text)


def field_text(record: dict[str, Any], field: str, where: str) -> bytes | None:
    """A record's document; None for null. Raises: DataError naming `where`."""
    if field not in record:
        names = ", ".join(map(repr, list(record)[:8])) or "none"
        raise DataError(
            f'{where}: no field "{field}"; it has {names}',
            'name the one that holds the text: [data] text_field = "…" in the run file',
        )
    value = record[field]
    if value is None:
        return None
    if not isinstance(value, str):
        raise DataError(
            f'{where}: "{field}" holds {type(value).__name__}, not a text',
            'name the one that holds the text: [data] text_field = "…" in the run file',
        )
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(
            f'{where}: "{field}" holds half of a surrogate pair, which is no character',
            "write the file again with a library that refuses it",
        ) from None


def _open(path: Path) -> IO[bytes]:
    is_packed = path.name.lower().endswith(".gz")
    return cast(IO[bytes], gzip.open(path)) if is_packed else path.open("rb")


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(_MAX_LINE_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}, line {number}: the packed file is damaged: {error}", "fetch it again"
            ) from error
        if len(line) > _MAX_LINE_BYTES:
            raise DataError(
                f"{path}, line {number}: longer than {_MAX_LINE_BYTES >> 20} MiB",
                "JSON lines have one object per line; give other text the suffix .txt",
            )
        if not line:
            return
        yield line


def _object(line: bytes, where: str) -> dict[str, Any]:
    hint = "JSON lines have one object per line; give other text the suffix .txt"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected a JSON object: {error}", hint) from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(value).__name__}", hint)
    return value
