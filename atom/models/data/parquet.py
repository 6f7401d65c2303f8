"""Parquet: one of its columns holds a document per row."""

from collections.abc import Iterator
from pathlib import Path

from atom.models.data.arrow import column_rows, open_table
from atom.models.data.corpus import DataError, RecordDocument


def parquet_documents(path: Path, text_field: str) -> Iterator[RecordDocument]:
    """The rows of the column `text_field`, a row group at a time; null is no document.

    Raises: DataError naming the file; OSError if it cannot be read.
    """
    with open_table(path) as table:
        names = table.schema_arrow.names
        if text_field not in names:
            raise DataError(
                f'{path}: no column "{text_field}"; it has {", ".join(map(repr, names[:8]))}',
                'name the one that holds the text: [data] text_field = "…" in the run file',
            )
        if names.count(text_field) > 1:
            raise DataError(
                f'{path}: {names.count(text_field)} columns are called "{text_field}"',
                "write it again with another name for each, or leave it out",
            )
        for number, content in enumerate(column_rows(table, text_field, path), start=1):
            if content is not None:
                yield RecordDocument(f"{path}, row {number}", content)
