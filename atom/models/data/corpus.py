"""What is trained on: documents in an order that is the same on every machine, up to a limit.

Which files or tables hold them does not matter: equal texts in equal order are equal corpora.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BLOCK_BYTES = 1 << 20


Progress = Callable[[str, int, int], None]
"""Called with (what is done, bytes of it done, bytes in all, or about so many), from the thread
that does it."""


def silent(what: str, done_bytes: int, total_bytes: int) -> None:
    """Tells nobody."""


class DataError(ValueError):
    """Data that cannot be used: what is wrong and where, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DataUnreachable(DataError):
    """Data that cannot be had now, and perhaps later."""


class NoRoomForData(DataUnreachable):
    """A copy that has to be made of them found no room on the disk."""


SURVEYING = "reading the text"


@contextmanager
def reads(path: Path) -> Iterator[None]:
    """Raises: DataError for an OSError within: it is the text's, and not of the disk that tokens
    are written to."""
    try:
        yield
    except OSError as error:
        what = error.strerror or error
        raise DataError(f"{path} cannot be read: {what}", "check its path and rights") from error


class Document(Protocol):
    """One text, not read yet."""

    @property
    def where(self) -> str:
        """What errors call it: a file, or its line or row."""

    @property
    def size_bytes(self) -> int: ...

    def boundary(self, offset: int) -> int:
        """The last offset up to this one where no UTF-8 character is cut in two.

        Raises: DataError if it cannot be read.
        """

    def blocks(self, wanted_bytes: int) -> Iterator[bytes]:
        """Its start, in blocks of BLOCK_BYTES.

        Raises: DataError if it has become shorter, or cannot be read.
        """


@dataclass(frozen=True)
class FileDocument:
    """A whole file, read block by block."""

    path: Path
    size_bytes: int

    @property
    def where(self) -> str:
        return str(self.path)

    def boundary(self, offset: int) -> int:
        first = max(0, offset - 3)
        with reads(self.path), self.path.open("rb") as file:
            file.seek(first)
            around = file.read(offset - first + 1)
        if len(around) <= offset - first:
            raise DataError(f"{self.path} shrank while it was read")
        return first + _boundary(around, offset - first)

    def blocks(self, wanted_bytes: int) -> Iterator[bytes]:
        with reads(self.path), self.path.open("rb") as file:
            while wanted_bytes > 0:
                block = file.read(min(BLOCK_BYTES, wanted_bytes))
                if not block:
                    raise DataError(f"{self.path} shrank by {wanted_bytes} bytes while it was read")
                wanted_bytes -= len(block)
                yield block


@dataclass(frozen=True)
class RecordDocument:
    """The text of one line or row."""

    where: str
    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def boundary(self, offset: int) -> int:
        return _boundary(self.content, offset)

    def blocks(self, wanted_bytes: int) -> Iterator[bytes]:
        for start in range(0, wanted_bytes, BLOCK_BYTES):
            yield self.content[start : min(wanted_bytes, start + BLOCK_BYTES)]


@dataclass(frozen=True)
class Limits:
    """How much of the texts is used, from their start."""

    max_bytes: int | None = None
    max_documents: int | None = None

    @property
    def bounded(self) -> bool:
        return self.max_bytes is not None or self.max_documents is not None


EVERYTHING = Limits()


@dataclass(frozen=True)
class Text:
    """A document within the limits; its blocks can be read once."""

    where: str
    blocks: Iterator[bytes]


@dataclass(frozen=True)
class Survey:
    """What reading a whole corpus tells."""

    digest: str
    """sha256 hex of the texts and where they end; names and containers do not matter."""
    total_bytes: int


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read again and again. Empty ones are none."""

    read: Callable[[], Iterator[Document]]
    limits: Limits = EVERYTHING
    origin: str | None = None
    """A name that means the same texts for ever, if there is one: they need not be read to be
    known again."""
    about_bytes: Callable[[], int] = lambda: 0
    """Of the files that `read` reads: how large they are, for who waits; 0: not known."""

    def texts(self) -> Iterator[Text]:
        """Read one to its end before the next. What lies behind the limits is not asked for: a
        stream need not end, nor be there any more.

        Raises: DataError for what holds no text, is not there, or cannot be read.
        """
        left, count = self.limits.max_bytes, 0
        for document in self.read():
            wanted = document.size_bytes
            if left is not None:
                wanted = wanted if wanted <= left else document.boundary(left)
                left = 0 if wanted < document.size_bytes else left - wanted
            if wanted:
                count += 1
                yield Text(document.where, document.blocks(wanted))
            if left == 0 or count == self.limits.max_documents:
                return

    def survey(self, on_progress: Progress = silent) -> Survey:
        """Reads all of it. Raises: as `texts`; DataError if there is no text."""
        reading, about = Reading(self), self._about_bytes()
        for blocks in reading.texts():
            for _ in blocks:
                if about:
                    on_progress(SURVEYING, reading.done_bytes, max(about, reading.done_bytes + 1))
        if not reading.done_bytes:
            raise DataError("the data files are all empty")
        if about:
            on_progress(SURVEYING, reading.done_bytes, reading.done_bytes)
        return Survey(reading.digest(), reading.done_bytes)

    def _about_bytes(self) -> int:
        found, most = self.about_bytes(), self.limits.max_bytes
        return found if most is None else min(found, most)


class Reading:
    """One pass through a corpus, which knows what it has read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._finished = hashlib.sha256()
        self._document = hashlib.sha256()
        self.where = ""
        self.documents = 0
        """Begun so far."""
        self.done_bytes = 0

    def texts(self) -> Iterator[Iterator[bytes]]:
        """Each text's blocks. Raises: as `Corpus.texts`."""
        for text in self._corpus.texts():
            self.where = text.where
            self.documents += 1
            yield self._counted(text.blocks)
            self._finished.update(self._document.digest())
            self._document = hashlib.sha256()

    def digest(self) -> str:
        """sha256 hex of all texts that were read to their end."""
        return self._finished.hexdigest()

    def place(self) -> str:
        """sha256 hex of what has been read, and where its documents end."""
        return hashlib.sha256(self._finished.digest() + self._document.digest()).hexdigest()

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._document.update(block)
            self.done_bytes += len(block)
            yield block


def _boundary(content: bytes, offset: int) -> int:
    for start in range(offset, max(-1, offset - 4), -1):
        if content[start] & 0xC0 != 0x80:
            return start
    return offset
