"""Which files a corpus is made of, and what each holds by its suffix."""

import glob
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from atom.models.data.corpus import (
    EVERYTHING,
    Corpus,
    DataError,
    Document,
    FileDocument,
    Limits,
    reads,
)
from atom.models.data.json_lines import json_lines_documents

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
PACKED_SUFFIXES = (".parquet", ".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".7z")
"""With any tokenizer their bytes are no text, and with "bytes" nobody would see it."""
_UNPACK = (
    'unpack it, or name its folder as a table: [data] source = "datasets", which knows .parquet '
    "and .jsonl.zst"
)

# Tests are data for tests, encodings are tables of numbers; the rest differs between machines
# with the same Python, much of it because Linux distributions package it apart.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings"}
    | {"site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    | {"tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip"}
)
_STDLIB_SKIPPED_FILES = frozenset({"turtle.py"})
_STDLIB_SKIPPED_PREFIXES = ("_sysconfigdata", "_distutils_system_mod", "sitecustomize")


def text_corpus(
    paths: Sequence[str | Path], limits: Limits = EVERYTHING, text_field: str = "text"
) -> Corpus:
    """Files, folders (every file below that is not hidden) and globs, in the order given.

    JSON lines hold a document per line, under `text_field`; any other file is one document.
    Within a folder or glob the order is that of the relative path. A file named twice counts once.
    Raises: DataError if an entry matches nothing, or may not be looked at.
    """
    found: dict[Path, Path] = {}
    for entry in paths:
        files = _matching(entry)
        if not files:
            what = "is an empty folder" if _is_folder(Path(entry)) else "matches no file"
            raise DataError(f"data path {str(entry)!r} {what}")
        for file in files:
            found.setdefault(file.resolve(), file)
    return _corpus(tuple(found.values()), limits, text_field)


def stdlib_corpus(limits: Limits = EVERYTHING, root: Path | None = None) -> Corpus:
    """The source of Python's standard library: real text that every machine with Python has.

    Without tests, installed packages and files that differ from machine to machine.
    Raises: DataError if this Python comes without its source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    sources = _walk(root, _is_stdlib_folder, _is_stdlib_source)
    if not sources:
        raise DataError(f"this Python has no source of its standard library in {root}")
    return _corpus(sources, limits, "text")


def _corpus(files: Sequence[Path], limits: Limits, text_field: str) -> Corpus:
    read = partial(_documents, files, text_field)
    return Corpus(read, limits, about_bytes=partial(size_of_files, files))


def size_of_files(files: Iterable[Path]) -> int:
    """Bytes on disk of those that are there."""
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _documents(files: Sequence[Path], text_field: str) -> Iterator[Document]:
    for path in files:
        name = path.name.lower()
        with reads(path):
            size = path.stat().st_size
            if name.endswith(JSON_LINES_SUFFIXES):
                yield from json_lines_documents(path, text_field)
            elif name.endswith(PACKED_SUFFIXES):
                raise DataError(f"{path} is packed, and only .jsonl.gz is read so", _UNPACK)
            else:
                yield FileDocument(path, size)


def _matching(entry: str | Path) -> list[Path]:
    path = Path(entry)
    if _is_text(path):
        return [path]
    if _is_folder(path):
        return _walk(path, lambda name: True, _is_text)
    matches = sorted(glob.glob(str(entry), recursive=True))
    return [Path(match) for match in matches if _is_text(Path(match))]


def _is_text(path: Path) -> bool:
    """Raises: DataError for a link whose text is gone, perhaps with the disk that it was on."""
    with reads(path):
        if path.is_symlink() and not path.exists():
            raise DataError(f"{path} is a link that leads nowhere", "mend it, or take it away")
    return _is_file(path)


def _is_file(path: Path) -> bool:
    with reads(path):
        return path.is_file()


def _is_folder(path: Path) -> bool:
    with reads(path):
        return path.is_dir()


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
    with reads(Path(problem.filename)):
        raise problem


def _is_stdlib_folder(name: str) -> bool:
    return name not in _STDLIB_SKIPPED_FOLDERS and not name.startswith("config-")


def _is_stdlib_source(file: Path) -> bool:
    if file.suffix != ".py" or file.name in _STDLIB_SKIPPED_FILES:
        return False
    return not file.name.startswith(_STDLIB_SKIPPED_PREFIXES) and _is_file(file)
