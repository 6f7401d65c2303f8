"""A text to train on: documents in an order that is the same on every machine, up to a size limit.

The files or tables that contain the documents do not matter: equal texts in equal order are equal
corpora. In a corpus of plain files, each file is one document, unchanged.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple, NoReturn

from atom.base.errors import ConfigError
from atom.models.data.account import Account
from atom.models.data.documents import (
    BYTES,
    UTF_8,
    Document,
    Omission,
    blocks_of,
    codec_of,
    text_errors,
)
from atom.models.data.rows import RowText, is_data_file

SURVEYING = "reading the text"

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


@dataclass(frozen=True)
class Corpus:
    """Sequence of documents that can be read repeatedly; empty documents are skipped."""

    read: Callable[[], Iterator[Document | Omission]]
    """Function that yields all documents from the first one on, and each part that is omitted."""
    max_bytes: int | None = None
    """Number of bytes to use, from the start of the first document; None: all."""
    about_bytes: int = 0
    """Approximate size of the corpus in bytes, for progress displays; 0: unknown."""

    def survey(self, on_progress: Progress = silent) -> "Reading":
        """Read the whole corpus once, to learn its digest and size.

        Raises:
            ConfigError: a document cannot be read, or all documents are empty.
        """
        reading, about = Reading(self), min(self.about_bytes, self.max_bytes or self.about_bytes)
        report = on_progress if about else silent
        for blocks in reading.texts():
            for _ in blocks:
                report(SURVEYING, reading.done_bytes, max(about, reading.done_bytes + 1))
        if not reading.done_bytes:
            omitted = "; ".join(reading.account.omissions())
            raise ConfigError("the data files are all empty", omitted)
        report(SURVEYING, reading.done_bytes, reading.done_bytes)
        return reading


class Reading:
    """One pass through a corpus, with the digest and the account of the part that has been read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._finished = hashlib.sha256()
        self._document = hashlib.sha256()
        self._left = corpus.max_bytes
        self._file = ""
        self.where = ""
        """Name of the current document."""
        self.done_bytes = 0
        """Number of bytes read."""
        self.account = Account()
        """Counts of the part that has been read."""

    def texts(self) -> Iterator[Iterator[bytes]]:
        """Yield an iterator of blocks for each document; exhaust it before taking the next one.

        No document after the corpus's size limit is opened.

        Raises:
            ConfigError: a document is missing, cannot be read, or is not text.
        """
        for document in self._corpus.read():
            if isinstance(document, Omission):
                self.account.omit(document)
                continue
            blocks = document.blocks()
            if not (first := next(blocks, b"")):
                self.account.omit(Omission("empty file", document.where))
            elif first := self._within_limit(first):
                self.where = document.where
                self.account.documents += 1
                self.account.files += bool(document.file) and document.file != self._file
                self._file = document.file
                yield self._counted(chain((first,), map(self._within_limit, blocks)))
                self._finished.update(self._document.digest())
                self._document = hashlib.sha256()
            if self._left == 0:
                self.account.omit(Omission("text after max_bytes", document.where))
                return

    def digest(self) -> str:
        """Return the sha256 hex digest of all completely read documents and their boundaries.

        Names of files and kinds of container do not change it.
        """
        return self._finished.hexdigest()

    def _within_limit(self, block: bytes) -> bytes:
        """Return the part of the block that the size limit allows, in whole characters."""
        if self._left is None:
            return block
        end = min(self._left, len(block))
        self._left -= end
        while 0 < end < len(block) and block[end] & 0xC0 == 0x80:
            end -= 1
        return block[:end]

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in takewhile(len, blocks):
            self._document.update(block)
            self.done_bytes += len(block)
            # The separators of answers are the only bytes that are not UTF-8; they are no text.
            text = block if block.isascii() else block.decode(errors="ignore")
            self.account.characters += len(text)
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


# ---- corpora of files


def text_corpus(
    paths: Sequence[str | Path], max_bytes: int | None = None, rows: RowText | None = None
) -> Corpus:
    """Return the corpus of all files that the paths name, in the order given.

    A data file, such as `.jsonl` or `.csv`, has a document for each row; any other is one document.

    Args:
        paths: files, folders (all files below, except hidden ones) and globs. Files of one folder
            or glob are ordered by relative path. A file that is named twice counts once.
        max_bytes: number of bytes to use, from the start of the first file; None: all.
        rows: rules for rows of data files, and the encoding of files that are not UTF-8.

    Raises:
        ConfigError: an entry matches no file, or cannot be read.
    """
    found: dict[Path, Path] = {}
    omitted = list[Omission]()
    for entry in paths:
        with text_errors(entry):
            files = _matching(entry, omitted)
            if not files:
                what = "is an empty folder" if Path(entry).is_dir() else "matches no file"
                hint = "name the files under [data] paths, in the run file or in your peer file"
                raise ConfigError(f"data path {str(entry)!r} {what}", hint)
        for file in files:
            if (place := file.resolve()) in found:
                omitted.append(Omission("file named twice", str(file)))
            found.setdefault(place, file)
    return _corpus(tuple(found.values()), max_bytes, rows or RowText(), omitted)


def stdlib_corpus(max_bytes: int | None = None, root: Path | None = None) -> Corpus:
    """Return the source code of Python's standard library as a corpus for trials.

    Tests, installed packages and files that differ between machines are left out.

    Args:
        max_bytes: number of bytes to use, from the start; None: all.
        root: folder of the library; None: this Python's.

    Raises:
        ConfigError: this Python comes without its source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    with text_errors(root):
        sources = _walk(root, _is_stdlib_folder, _is_stdlib_source, [])
    if not sources:
        raise ConfigError(f"this Python has no source code of its standard library in {root}")
    return _corpus(sources, max_bytes, RowText(encoding=BYTES), ())


def _corpus(
    files: Sequence[Path], max_bytes: int | None, rows: RowText, omitted: Sequence[Omission]
) -> Corpus:
    def read() -> Iterator[Document | Omission]:
        yield from omitted
        for path in files:
            yield from file_documents(path, rows)

    return Corpus(read, max_bytes, size_of_files(files))


def file_documents(path: Path, rows: RowText) -> Iterator[Document | Omission]:
    """Yield the documents of a file: one for each row of a data file, else one.

    Raises:
        ConfigError: the file is not text, is damaged, or has a row that cannot become text.
    """
    if is_data_file(path):
        yield from rows.of_file(path)
        return
    codec = codec_of(path, rows.encoding)
    if codec is None:
        raise ConfigError(
            f"{path} is not text",
            'name only text: [data] paths = ["…/*.txt"]; if it is UTF-16: encoding = "utf-16-le"',
        )
    if codec not in (UTF_8, BYTES):
        yield Omission(f"file converted from {codec}", str(path))
    yield Document(str(path), partial(blocks_of, path, codec), str(path))


def size_of_files(files: Iterable[Path]) -> int:
    """Return the total size of the files in bytes; missing or unreadable ones count as 0."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _matching(entry: str | Path, omitted: list[Omission]) -> list[Path]:
    path = Path(entry)
    if _is_file(path):
        return [path]
    if path.is_dir():
        return _walk(path, lambda name: True, _is_file, omitted)
    matches = sorted(glob.glob(str(entry), recursive=True))
    return [Path(match) for match in matches if _is_file(Path(match))]


def _is_file(path: Path) -> bool:
    """Return True for a file.

    Raises:
        ConfigError: the path is a broken link, so its text may be on a disk that is not mounted.
    """
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{path} is a dangling link", "repair or remove the link")
    return path.is_file()


def _walk(
    root: Path,
    folder_counts: Callable[[str], bool],
    file_counts: Callable[[Path], bool],
    omitted: list[Omission],
) -> list[Path]:
    """Return the files below `root`, sorted by relative path; links to folders are not followed.

    Hidden files and folders, and links to folders, are added to `omitted`.
    """
    files: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_raise):
        for name in sorted((*folders, *names)):
            place = Path(folder, name)
            if name.startswith("."):
                omitted.append(Omission("hidden file or folder", str(place)))
            elif name in folders and place.is_symlink():
                omitted.append(Omission("link to a folder", str(place)))
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
