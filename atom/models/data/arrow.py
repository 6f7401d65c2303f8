"""The door to `pyarrow`, which reads parquet and zstd."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

from atom.models.data.corpus import DataError
from atom.models.installing import install_extra

_ROWS_TOGETHER = 1024


def open_zstd(path: Path) -> IO[bytes]:
    """A packed file's content. Raises: DataError without the library; OSError."""
    arrow = _library(path)
    # A stream of pyarrow's gives blocks; lines are what the standard library makes of them.
    return io.BufferedReader(arrow.input_stream(str(path), compression="zstd"))


def open_table(path: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`. Raises: DataError if it is none; OSError."""
    arrow = _library(path)
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, page_checksum_verification=True)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a parquet file: {error}", "fetch it again") from error


def column_rows(table: Any, column: str, path: Path) -> Iterator[bytes | None]:
    """A text column's rows, few at a time. Raises: DataError if it is not one of text; OSError."""
    arrow = _library(path)
    kind = table.schema_arrow.field(column).type
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    if not any(holds(kind) for holds in _text_kinds(arrow)):
        raise DataError(
            f'{path}: the column "{column}" holds {kind}, not text',
            'name the one that holds the text: [data] text_field = "…" in the run file',
        )
    try:
        for batch in table.iter_batches(_ROWS_TOGETHER, columns=[column]):
            # By name: with "a.b" comes also what lies in a column "a" as "b".
            texts = batch.column(column).cast(arrow.large_string()).cast(arrow.large_binary())
            yield from texts.to_pylist()
    except MemoryError:  # of pyarrow's own, too
        raise
    except arrow.ArrowNotImplementedError as error:
        what = f"{path}: pyarrow {arrow.__version__} cannot read it: {error}"
        raise DataError(what, "write it again, packed with zstd or not at all") from error
    except arrow.ArrowException as error:
        raise DataError(f"{path} is damaged: {error}", "fetch it again") from error


def _text_kinds(arrow: ModuleType) -> tuple[Callable[[Any], bool], ...]:
    kinds = arrow.types
    return (kinds.is_string, kinds.is_large_string, kinds.is_string_view)


def _library(path: Path) -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            f"{path} needs the package `pyarrow`", f"`{install_extra('data')}`"
        ) from error
    return cast(ModuleType, pyarrow)
