"""An unfinished token file, and the journal of how far it had come.

A writer holds a lock on its unfinished file. A second one for the same tokens writes a file of its
own, which nobody resumes.
"""

import array
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from atom.models.data.corpus import BLOCK_BYTES

HEADER_BYTES = 256
# Array type codes of the standard library; int32 holds every real vocabulary, and unlike uint32
# PyTorch can compute with it.
TYPE_CODES = {"uint8": "B", "uint16": "H", "int32": "i"}
_PARTIAL = ".partial"
_JOURNAL = ".journal"
_FORMAT = f"atom-journal-1:{BLOCK_BYTES}"
_KEPT_S = 7 * 24 * 3600
"""What nobody goes on with for so long is removed."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Journal:
    """How far an interrupted writer had come."""

    pieces: int
    """Of text, since its beginning."""
    tokens: int
    tokens_sha256: str
    text_bytes: int
    text_sha256: str
    """See `Reading.place`."""


@dataclass
class Unfinished:
    """A locked file of tokens after room for the header. Not for several threads."""

    file: IO[bytes]
    path: Path
    journal: Path | None
    """None: nobody will go on with it."""
    token_type: str
    sha256: Any
    """Of the tokens so far, a hash that can be added to."""
    tokens: int = 0

    @property
    def resumable(self) -> bool:
        """Whether somebody could go on with it."""
        return self.journal is not None and self.journal.exists()

    def append(self, tokens: Sequence[int]) -> None:
        raw = _raw(tokens, self.token_type)
        self.sha256.update(raw)
        self.tokens += len(tokens)
        self.file.write(raw)

    def save(self, pieces: int, text_bytes: int, text_sha256: str) -> None:
        """What was appended so far is there after a crash, and known to be. Raises: OSError."""
        if self.journal is None:
            return
        self._sync()
        digest = self.sha256.hexdigest()
        _write_journal(self.journal, Journal(pieces, self.tokens, digest, text_bytes, text_sha256))

    def finish(self, header: bytes, path: Path) -> None:
        """Becomes the file `path`, whole and synced. Raises: OSError."""
        self.file.seek(0)
        self.file.write(header)
        self._sync()
        os.replace(self.path, path)
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)

    def discard(self) -> None:
        for path in (self.path, self.journal):
            if path is not None:
                path.unlink(missing_ok=True)

    def resume(self) -> Journal | None:
        """Where to go on, with the file cut to there; None: at the beginning, with an empty file.

        Raises: OSError.
        """
        if self.journal is None:
            return None
        known = _read_journal(self.journal)
        if known is not None and self._take_up(known):
            return known
        self.journal.unlink(missing_ok=True)
        self.sha256, self.tokens = hashlib.sha256(), 0
        self.file.truncate(0)
        self.file.seek(0)
        self.file.write(bytes(HEADER_BYTES))
        return None

    def _take_up(self, known: Journal) -> bool:
        """Whether the file's first tokens are those of the journal."""
        left = known.tokens * array.array(TYPE_CODES[self.token_type]).itemsize
        end = HEADER_BYTES + left
        self.file.seek(HEADER_BYTES)
        while left > 0 and (raw := self.file.read(min(left, _READ_BYTES))):
            self.sha256.update(raw)
            left -= len(raw)
        if left or self.sha256.hexdigest() != known.tokens_sha256:
            return False
        self.file.truncate(end)
        self.file.seek(end)
        self.tokens = known.tokens
        return True

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())


@contextlib.contextmanager
def unfinished(path: Path, token_type: str) -> Iterator[Unfinished]:
    """What is to become `path`: that of an interrupted writer, or a new one. Raises: OSError."""
    partial = path.with_suffix(_PARTIAL)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        if _locked(file, partial):
            journal = path.with_suffix(_JOURNAL)
            yield Unfinished(file, partial, journal, token_type, hashlib.sha256())
            return
    descriptor, name = tempfile.mkstemp(_PARTIAL, dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(bytes(HEADER_BYTES))
        yield Unfinished(file, Path(name), None, token_type, hashlib.sha256())


def remove_abandoned(folder: Path, now_s: float) -> None:
    """Removes what dead writers left and nobody can, or will, go on with. `now_s`: time.time()."""
    for path in folder.glob(f"*{_PARTIAL}"):
        journal = path.with_suffix(_JOURNAL)
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not journal.exists() or now_s - journal.stat().st_mtime > _KEPT_S:
                path.unlink()
                journal.unlink(missing_ok=True)


def _locked(file: IO[bytes], path: Path) -> bool:
    """Whether `file` is ours now, and still the one that is called `path`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _read_journal(path: Path) -> Journal | None:
    """None if there is none, or none of ours."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != _FORMAT:
            return None
        counts = (content["pieces"], content["tokens"], content["text_bytes"])
        digests = (str(content["tokens_sha256"]), str(content["text_sha256"]))
        pieces, tokens, text_bytes = map(int, counts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Journal(pieces, tokens, digests[0], text_bytes, digests[1])


def _write_journal(path: Path, journal: Journal) -> None:
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **asdict(journal)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _raw(tokens: Sequence[int], token_type: str) -> bytes:
    if isinstance(tokens, bytes) and token_type == "uint8":
        return tokens
    values = array.array(TYPE_CODES[token_type], tokens)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
