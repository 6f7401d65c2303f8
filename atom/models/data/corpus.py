"""A text to train on: documents in an order that is the same on every machine, up to a size limit.

The files or tables that contain the documents do not matter: equal texts in equal order are equal
corpora. In a corpus of plain files, each file is one document, unchanged.
"""

import glob
import hashlib
import io
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from atom.models.source import DataError

BLOCK_BYTES = 1 << 20
SURVEYING = "reading the text"
PACKED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z")
TABLE_SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".arrow")
"""Suffixes of files that hold no plain text, or more than the text.

They are refused, because the tokenizer "bytes" would silently take any bytes.
"""
_HOW_TO_READ = (
    'read its folder as a table: [data] source = "datasets", which also reads .jsonl.gz and .zst; '
    "or unpack it and call it .txt"
)

# Tests hold test data, and encodings hold tables of numbers. The other folders differ between
# machines with the same Python, often because Linux distributions package them separately.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings"}
    | {"site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    | {"tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip"}
)
_STDLIB_SKIPPED_PREFIXES = ("_sysconfigdata", "_distutils_system_mod", "sitecustomize", "turtle.py")

Progress = Callable[[str, int, int], None]
"""Progress callback: (name of the activity, bytes done, bytes in total, possibly an estimate).

It is called from the thread that does the work.
"""


def silent(what: str, done_bytes: int, total_bytes: int) -> None:
    """Ignore the progress."""


@contextmanager
def text_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError within the context into a DataError about the text `where`.

    This keeps errors of reading the text apart from errors of the disk to which tokens are written.
    """
    try:
        yield
    except OSError as error:
        what = f"{error.filename or where} cannot be read: {error.strerror or error}"
        raise DataError(what, "check its path and rights") from error


@dataclass(frozen=True)
class Document:
    """One text of a corpus, opened only when it is read."""

    where: str
    """Name of the text in errors: a file, or a row of a table."""
    size_bytes: int
    open: Callable[[], IO[bytes]]

    def boundary(self, offset: int) -> int:
        """Return the last offset up to `offset` that does not cut a UTF-8 character.

        Raises:
            DataError: the text cannot be read.
        """
        first = max(0, offset - 3)
        with text_errors(self.where), self.open() as file:
            file.seek(first)
            around = file.read(offset - first + 1)
        if len(around) <= offset - first:
            raise DataError(f"{self.where} shrank while it was read")
        starts = (at for at in range(offset, first - 1, -1) if around[at - first] & 0xC0 != 0x80)
        return next(starts, offset)

    def blocks(self, wanted_bytes: int) -> Iterator[bytes]:
        """Yield the first `wanted_bytes` of the text, in blocks of at most BLOCK_BYTES.

        Raises:
            DataError: the text has become shorter or cannot be read.
        """
        with text_errors(self.where), self.open() as file:
            while wanted_bytes > 0:
                block = file.read(min(BLOCK_BYTES, wanted_bytes))
                if not block:
                    what = f"shrank by {wanted_bytes} bytes while it was read"
                    raise DataError(f"{self.where} {what}")
                wanted_bytes -= len(block)
                yield block


def row_document(where: str, content: bytes) -> Document:
    """Return a document whose content is in memory, such as the text of a table row."""
    return Document(where, len(content), partial(io.BytesIO, content))


@dataclass(frozen=True)
class Corpus:
    """Sequence of documents that can be read repeatedly; empty documents are skipped."""

    read: Callable[[], Iterator[Document]]
    """Function that yields all documents from the first one on."""
    max_bytes: int | None = None
    """Number of bytes to use, from the start of the first document; None: all."""
    about_bytes: int = 0
    """Approximate size of the corpus in bytes, for progress displays; 0: unknown."""

    def survey(self, on_progress: Progress = silent) -> "Reading":
        """Read the whole corpus once, to learn its digest and size.

        Raises:
            DataError: a document cannot be read, or all documents are empty.
        """
        reading, about = Reading(self), min(self.about_bytes, self.max_bytes or self.about_bytes)
        report = on_progress if about else silent
        for blocks in reading.texts():
            for _ in blocks:
                report(SURVEYING, reading.done_bytes, max(about, reading.done_bytes + 1))
        if not reading.done_bytes:
            raise DataError("the data files are all empty")
        report(SURVEYING, reading.done_bytes, reading.done_bytes)
        return reading


class Reading:
    """One pass through a corpus, with the digest and counts of the part that has been read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._finished = hashlib.sha256()
        self._document = hashlib.sha256()
        self.where = ""
        """Name of the current document."""
        self.documents = 0
        """Number of documents begun."""
        self.done_bytes = 0
        """Number of bytes read."""

    def texts(self) -> Iterator[Iterator[bytes]]:
        """Yield an iterator of blocks for each document; exhaust it before taking the next one.

        No document after the corpus's size limit is opened.

        Raises:
            DataError: a document is missing, cannot be read, or holds no text.
        """
        left = self._corpus.max_bytes
        for document in self._corpus.read():
            wanted = document.size_bytes
            if left is not None:
                wanted = wanted if wanted <= left else document.boundary(left)
                left = 0 if wanted < document.size_bytes else left - wanted
            if wanted:
                self.where = document.where
                self.documents += 1
                yield self._counted(document.blocks(wanted))
                self._finished.update(self._document.digest())
                self._document = hashlib.sha256()
            if left == 0:
                return

    def digest(self) -> str:
        """Return the sha256 hex digest of all completely read documents and their boundaries.

        Names of files and kinds of container do not change it.
        """
        return self._finished.hexdigest()

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._document.update(block)
            self.done_bytes += len(block)
            yield block


class Amount(NamedTuple):
    """Size of a run's data, which people compare between machines.

    A sample is a sequence of tokens if the data is text, else a sample of the module's own dataset.
    """

    tokens: int
    """Number of tokens to train on; 0 if the data is not text."""
    samples: int
    """Number of samples to train on."""
    held_back: int
    """Number of tokens held back for validation, or of samples if the data is not text."""

    def __str__(self) -> str:
        noun = "sequence" if self.tokens else "sample"
        text = f"{self.samples:,} {noun}{'' if self.samples == 1 else 's'} to train on"
        if self.tokens:
            text = f"{self.tokens:,} tokens, {text}"
        if not self.held_back:
            return text
        return f"{text}, {self.held_back:,}{' tokens' if self.tokens else ''} held back"


# ---- corpora of plain files


def text_corpus(paths: Sequence[str | Path], max_bytes: int | None = None) -> Corpus:
    """Return the corpus of all files that the paths name, in the order given.

    Args:
        paths: files, folders (all files below, except hidden ones) and globs. Files of one folder
            or glob are ordered by relative path. A file that is named twice counts once.
        max_bytes: number of bytes to use, from the start of the first file; None: all.

    Raises:
        DataError: an entry matches no file, cannot be read, or is packed or a table.
    """
    found: dict[Path, Path] = {}
    for entry in paths:
        with text_errors(entry):
            files = _matching(entry)
            if not files:
                what = "is an empty folder" if Path(entry).is_dir() else "matches no file"
                raise DataError(f"data path {str(entry)!r} {what}")
        for file in files:
            if file.name.lower().endswith(PACKED_SUFFIXES + TABLE_SUFFIXES):
                raise DataError(f"{file} is packed or a table, not plain text", _HOW_TO_READ)
            found.setdefault(file.resolve(), file)
    return _corpus(tuple(found.values()), max_bytes)


def stdlib_corpus(max_bytes: int | None = None, root: Path | None = None) -> Corpus:
    """Return the source code of Python's standard library as a corpus for trials.

    Tests, installed packages and files that differ between machines are left out.

    Args:
        max_bytes: number of bytes to use, from the start; None: all.
        root: folder of the library; None: this Python's.

    Raises:
        DataError: this Python comes without its source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    with text_errors(root):
        sources = _walk(root, _is_stdlib_folder, _is_stdlib_source)
    if not sources:
        raise DataError(f"this Python has no source code of its standard library in {root}")
    return _corpus(sources, max_bytes)


def _corpus(files: Sequence[Path], max_bytes: int | None) -> Corpus:
    return Corpus(partial(_documents, files), max_bytes, size_of_files(files))


def size_of_files(files: Iterable[Path]) -> int:
    """Return the total size of the files in bytes; missing or unreadable ones count as 0."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    for path in files:
        with text_errors(path):
            size_bytes = path.stat().st_size
        yield Document(str(path), size_bytes, partial(_open, path))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _matching(entry: str | Path) -> list[Path]:
    path = Path(entry)
    if _is_text(path):
        return [path]
    if path.is_dir():
        return _walk(path, lambda name: True, _is_text)
    matches = sorted(glob.glob(str(entry), recursive=True))
    return [Path(match) for match in matches if _is_text(Path(match))]


def _is_text(path: Path) -> bool:
    """Return True for a file.

    Raises:
        DataError: the path is a broken link, so its text may be on a disk that is not mounted.
    """
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a dangling link", "repair or remove the link")
    return path.is_file()


def _walk(
    root: Path, folder_counts: Callable[[str], bool], file_counts: Callable[[Path], bool]
) -> list[Path]:
    """Return the files below `root`, sorted by relative path; links to folders are not followed."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".") and folder_counts(name)]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((f for f in files if file_counts(f)), key=lambda f: f.relative_to(root).parts)


def _raise(problem: OSError) -> NoReturn:
    """Raise the error of a folder that cannot be read, because os.walk would silently skip it."""
    raise problem


def _is_stdlib_folder(name: str) -> bool:
    return name not in _STDLIB_SKIPPED_FOLDERS and not name.startswith("config-")


def _is_stdlib_source(file: Path) -> bool:
    if file.suffix != ".py" or file.name.startswith(_STDLIB_SKIPPED_PREFIXES):
        return False
    return file.is_file()
