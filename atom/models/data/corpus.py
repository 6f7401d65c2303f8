"""Which files a corpus is made of, in an order that is the same on every machine."""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 1 << 20

# Tests are data for tests, encodings are tables of numbers; the rest differs between machines
# with the same Python.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings"}
    | {"site-packages", "dist-packages", "__pycache__", "lib-dynload"}
)
_STDLIB_SKIPPED_PREFIXES = ("_sysconfigdata", "_distutils_system_mod", "sitecustomize")


@dataclass(frozen=True)
class Corpus:
    """Files in reading order; of the last one only a part, if `total_bytes` is less than all."""

    files: tuple[Path, ...]
    total_bytes: int

    def documents(self) -> Iterator[Iterator[bytes]]:
        """Each file as blocks of bytes. Read one document to its end before the next.

        Raises: ValueError if a file became shorter than it was; OSError if it cannot be read.
        """
        left = self.total_bytes
        for path in self.files:
            wanted = min(left, path.stat().st_size)
            left -= wanted
            yield _blocks(path, wanted)
        if left:
            raise ValueError(f"the text shrank by {left} bytes while it was read")

    def digest(self) -> str:
        """sha256 hex of the contents and where the documents end; names do not matter."""
        whole = hashlib.sha256()
        for blocks in self.documents():
            document = hashlib.sha256()
            for block in blocks:
                document.update(block)
            whole.update(document.digest())
        return whole.hexdigest()


def text_corpus(paths: Sequence[str | Path], max_bytes: int | None = None) -> Corpus:
    """Files, folders (every file below that is not hidden) and globs, in the order given.

    Within a folder or glob the order is that of the relative path. A file named twice counts once.
    Raises: ValueError if an entry matches nothing, or a file cannot be read.
    """
    found: dict[Path, Path] = {}
    for entry in paths:
        files = _matching(entry)
        if not files:
            raise ValueError(f"data path {str(entry)!r} matches no file")
        for file in files:
            found.setdefault(file.resolve(), file)
    return _capped(list(found.values()), max_bytes)


def stdlib_corpus(max_bytes: int | None = None, root: Path | None = None) -> Corpus:
    """The source of Python's standard library: real text that every machine with Python has.

    Without tests, installed packages and files that differ from machine to machine.
    Raises: ValueError if this Python comes without its source.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    files = _walk(root, _is_stdlib_folder)
    sources = [file for file in files if _is_stdlib_source(file)]
    if not sources:
        raise ValueError(f"this Python has no source of its standard library in {root}")
    return _capped(sources, max_bytes)


def _matching(entry: str | Path) -> list[Path]:
    path = Path(entry)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _walk(path, lambda name: True)
    matches = sorted(glob.glob(str(entry), recursive=True))
    return [Path(match) for match in matches if Path(match).is_file()]


def _walk(root: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Files below `root`, sorted by relative path; links to folders are not followed."""
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and wanted(name)]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((f for f in files if f.is_file()), key=lambda f: f.relative_to(root).parts)


def _is_stdlib_folder(name: str) -> bool:
    return name not in _STDLIB_SKIPPED_FOLDERS and not name.startswith("config-")


def _is_stdlib_source(file: Path) -> bool:
    return file.suffix == ".py" and not file.name.startswith(_STDLIB_SKIPPED_PREFIXES)


def _capped(files: Sequence[Path], max_bytes: int | None) -> Corpus:
    kept: list[Path] = []
    total = 0
    for file in files:
        if max_bytes is not None and total >= max_bytes:
            break
        try:
            size = file.stat().st_size
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from error
        if size:
            kept.append(file)
            total += size
    if not total:
        raise ValueError("the data files are all empty")
    if max_bytes is not None and total > max_bytes:
        last_bytes = kept[-1].stat().st_size
        total -= last_bytes
        total += _character_boundary(kept[-1], max_bytes - total)
    return Corpus(tuple(kept), total)


def _character_boundary(path: Path, offset: int) -> int:
    """The last offset up to this one where no UTF-8 character is cut in two."""
    with path.open("rb") as file:
        for start in range(offset, max(0, offset - 3), -1):
            file.seek(start)
            if file.read(1)[0] & 0xC0 != 0x80:
                return start
    return offset


def _blocks(path: Path, wanted_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while wanted_bytes > 0:
            block = file.read(min(BLOCK_BYTES, wanted_bytes))
            if not block:
                raise ValueError(f"{path} shrank by {wanted_bytes} bytes while it was read")
            wanted_bytes -= len(block)
            yield block
