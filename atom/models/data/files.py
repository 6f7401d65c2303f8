"""Corpora of plain files: each file is one document, unchanged."""

import glob
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from atom.models.data.corpus import Corpus, Document, text_errors
from atom.models.source import DataError

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


def text_corpus(paths: Sequence[str | Path], max_bytes: int | None = None) -> Corpus:
    """Return the corpus of all files that the paths name, in the order given.

    Args:
        paths: files, folders (all files below, except hidden ones) and globs. Files of one folder
            or glob are ordered by relative path. A file that is named twice counts once.
        max_bytes: number of bytes to use, from the start of the first file; None: all.

    Raises: DataError if an entry matches no file, cannot be read, or is packed or a table.
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

    Raises: DataError if this Python comes without its source.
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

    Raises: DataError for a broken link, because its text may be on a disk that is not mounted.
    """
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link that leads nowhere", "repair or remove the link")
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
