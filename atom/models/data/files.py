"""Which files a corpus is made of. Each is one document, as it is."""

import glob
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from atom.models.data.corpus import Corpus, Document, reads
from atom.models.source import DataError

PACKED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z")
TABLE_SUFFIXES = (".jsonl", ".ndjson", ".parquet", ".arrow")
"""With these the bytes of a file are no text, or not the text alone, and with the tokenizer "bytes"
nobody would see it."""
_AS_TABLE = (
    'name its folder as a table: [data] source = "datasets", which also knows .jsonl.gz and .zst; '
    "or unpack it and call it .txt"
)

# Tests are data for tests, encodings are tables of numbers; the rest differs between machines
# with the same Python, much of it because Linux distributions package it apart.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings"}
    | {"site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    | {"tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip"}
)
_STDLIB_SKIPPED_PREFIXES = ("_sysconfigdata", "_distutils_system_mod", "sitecustomize", "turtle.py")


def text_corpus(paths: Sequence[str | Path], max_bytes: int | None = None) -> Corpus:
    """Files, folders (every file below that is not hidden) and globs, in the order given.

    Within a folder or glob the order is that of the relative path. A file named twice counts once.
    Raises: DataError if an entry matches nothing, holds tables, or may not be looked at.
    """
    found: dict[Path, Path] = {}
    for entry in paths:
        with reads(entry):
            files = _matching(entry)
            if not files:
                what = "is an empty folder" if Path(entry).is_dir() else "matches no file"
                raise DataError(f"data path {str(entry)!r} {what}")
        for file in files:
            if file.name.lower().endswith(PACKED_SUFFIXES + TABLE_SUFFIXES):
                raise DataError(f"{file} is packed or a table, not plain text", _AS_TABLE)
            found.setdefault(file.resolve(), file)
    return _corpus(tuple(found.values()), max_bytes)


def stdlib_corpus(max_bytes: int | None = None, root: Path | None = None) -> Corpus:
    """The source of Python's standard library: real text that every machine with Python has.

    Without tests, installed packages and files that differ from machine to machine.
    Raises: DataError if this Python comes without its source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    with reads(root):
        sources = _walk(root, _is_stdlib_folder, _is_stdlib_source)
    if not sources:
        raise DataError(f"this Python has no source of its standard library in {root}")
    return _corpus(sources, max_bytes)


def _corpus(files: Sequence[Path], max_bytes: int | None) -> Corpus:
    return Corpus(partial(_documents, files), max_bytes, size_of_files(files))


def size_of_files(files: Iterable[Path]) -> int:
    """Bytes on disk of those that are there."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _documents(files: Sequence[Path]) -> Iterator[Document]:
    for path in files:
        with reads(path):
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
    """Raises: DataError for a link whose text is gone, perhaps with the disk that it was on."""
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link that leads nowhere", "mend it, or take it away")
    return path.is_file()


def _walk(
    root: Path, folder_counts: Callable[[str], bool], file_counts: Callable[[Path], bool]
) -> list[Path]:
    """Files below `root`, sorted by relative path; links to folders are not followed."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and folder_counts(name)]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((f for f in files if file_counts(f)), key=lambda f: f.relative_to(root).parts)


def _refuse(problem: OSError) -> NoReturn:
    """Else the texts of a folder that may not be read would be left out, and nobody would know."""
    raise problem


def _is_stdlib_folder(name: str) -> bool:
    return name not in _STDLIB_SKIPPED_FOLDERS and not name.startswith("config-")


def _is_stdlib_source(file: Path) -> bool:
    if file.suffix != ".py" or file.name.startswith(_STDLIB_SKIPPED_PREFIXES):
        return False
    return file.is_file()
