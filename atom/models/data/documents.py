"""Documents of a corpus, and the text of one file: its compression, encoding and byte-order mark.

A file is read as UTF-8, unless a byte-order mark names another encoding. Bytes that are not valid
in that encoding are refused by file and position: no character is ever replaced or dropped. Another
encoding is used only if the run file names one, because bytes alone do not tell Windows-1252 from
Windows-1251.
"""

import codecs
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from atom.base.errors import ConfigError
from atom.models.source import needs_extra

BLOCK_BYTES = 1 << 20
UTF_8, BYTES = "utf-8", "bytes"
"""Encodings: the usual one, and bytes that are used as they are, whatever they mean."""
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with the mark of utf-16-le
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PDF = b"%PDF-"
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


class Omission(NamedTuple):
    """Part of a corpus that is not used, or only changed, and why."""

    reason: str
    """Kind of the part ("empty file"), or the change to it."""
    where: str
    """Name of the part: a file, or a row of a table."""


@dataclass(frozen=True)
class Document:
    """One text of a corpus, opened only when it is read."""

    where: str
    """Name of the text in errors: a file, or a row of a table."""
    open: Callable[[], Iterator[bytes]]
    """Function that yields the text as UTF-8, in blocks that do not cut a character."""
    file: str = ""
    """Name of the file that contains the text; empty: not in a file, or unknown."""

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks that are not empty.

        Raises:
            ConfigError: the text cannot be read.
        """
        with text_errors(self.where):
            yield from filter(None, self.open())


@contextmanager
def text_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError within the context into a ConfigError about the text `where`.

    This keeps errors of reading the text apart from errors of the disk to which tokens are written.
    """
    try:
        yield
    except OSError as error:
        what = f"{error.filename or where} cannot be read: {error.strerror or error}"
        raise ConfigError(what, "check its path and rights, and that it is complete") from error


# ---- files


def open_file(path: Path) -> Any:
    """Open a file to read its bytes, unpacked.

    Raises:
        ConfigError: the package that unpacks the file is missing.
        OSError: the file cannot be opened.
    """
    packed = _PACKED.get(path.suffix.lower())
    if packed is None:
        return path.open("rb")
    return load_pyarrow(path).input_stream(str(path), compression=packed)


def load_pyarrow(path: Path) -> Any:
    """Return the library that reads a file.

    Raises:
        ConfigError: the library is not installed.
    """
    with needs_extra("data", str(path)):
        import pyarrow.parquet
    return pyarrow


def inner_suffix(path: Path) -> str:
    """Return the lower-case suffix of a file's content: ".jsonl" for "a.jsonl.gz"."""
    inner = path.with_suffix("") if path.suffix.lower() in _PACKED else path
    return inner.suffix.lower()


def codec_of(path: Path, encoding: str | None) -> str | None:
    """Return the encoding of a file; None: the file is not text.

    Args:
        path: the file.
        encoding: encoding of files that are not UTF-8 and have no byte-order mark, or `BYTES`; None
            if all are UTF-8.

    Raises:
        ConfigError: the file cannot be read.
    """
    if encoding == BYTES:
        return BYTES
    with text_errors(path), open_file(path) as file:
        start = file.read(BLOCK_BYTES)
    for mark, codec in _BYTE_ORDER_MARKS:
        if start.startswith(mark):
            return codec
    has_null, is_wide = b"\0" in start, "utf-16" in (encoding or "")
    if start.startswith(_PDF) or (has_null and not is_wide):
        return None
    if encoding is not None and (has_null if is_wide else not _is_utf_8(path)):
        return encoding
    return UTF_8


def _is_utf_8(path: Path) -> bool:
    try:
        return all(True for _ in characters(path, UTF_8))
    except ConfigError:
        return False


def characters(path: Path, codec: str) -> Iterator[str]:
    """Yield a file's text in blocks, without a byte-order mark. Line ends are unchanged.

    Raises:
        ConfigError: the bytes are not text in this encoding; the message names the first position.
        OSError: the file cannot be read.
    """
    decoder = codecs.getincrementaldecoder(codec)()
    with open_file(path) as file:
        block = file.read(BLOCK_BYTES)
        marks = (mark for mark, of in _BYTE_ORDER_MARKS if of == codec)
        done = len(next(filter(block.startswith, marks), b""))
        block = block[done:]
        while True:
            held = len(decoder.getstate()[0])
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place, bad = done - held + error.start, error.object[error.start]
                raise ConfigError(
                    f"{path} is not {codec.upper()} text: byte {place:,} is 0x{bad:02x}", _HINT
                ) from error
            if not block:
                return
            done += len(block)
            block = file.read(BLOCK_BYTES)


_HINT = (
    "name the encoding of such files, for example [data] encoding = "
    '"windows-1252" (also for Latin-1), or leave the file out'
)


def blocks_of(path: Path, codec: str) -> Iterator[bytes]:
    """Yield the text of a file as UTF-8, in blocks that do not cut a character.

    Args:
        path: the file.
        codec: its encoding, or `BYTES` for its bytes as they are.

    Raises:
        ConfigError: the bytes are not text in this encoding.
        OSError: the file cannot be read.
    """
    if codec != BYTES:
        yield from (text.encode() for text in characters(path, codec))
        return
    with path.open("rb") as file:
        yield from iter(partial(file.read, BLOCK_BYTES), b"")
