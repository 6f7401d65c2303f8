"""What is trained on: documents in an order that is the same on every machine, up to a limit.

Which files or tables hold them does not matter: equal texts in equal order are equal corpora.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from atom.models.source import DataError

BLOCK_BYTES = 1 << 20
SURVEYING = "reading the text"

Progress = Callable[[str, int, int], None]
"""Called with (what is done, bytes of it done, bytes in all, or about so many), from the thread
that does it."""


def silent(what: str, done_bytes: int, total_bytes: int) -> None:
    """Tells nobody."""


@contextmanager
def reads(where: Path | str) -> Iterator[None]:
    """Raises: DataError for an OSError within: it is the text's, and not of the disk that tokens
    are written to."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or where} cannot be read: {error.strerror or error}"
        raise DataError(what, "check its path and rights") from error


@dataclass(frozen=True)
class Document:
    """One text, not read yet."""

    where: str
    """What errors call it: a file, or the row of a table."""
    size_bytes: int
    open: Callable[[], IO[bytes]]

    def boundary(self, offset: int) -> int:
        """The last offset up to this one where no UTF-8 character is cut in two.

        Raises: DataError if it cannot be read.
        """
        first = max(0, offset - 3)
        with reads(self.where), self.open() as file:
            file.seek(first)
            around = file.read(offset - first + 1)
        if len(around) <= offset - first:
            raise DataError(f"{self.where} shrank while it was read")
        starts = (at for at in range(offset, first - 1, -1) if around[at - first] & 0xC0 != 0x80)
        return next(starts, offset)

    def blocks(self, wanted_bytes: int) -> Iterator[bytes]:
        """Its start, in blocks of BLOCK_BYTES.

        Raises: DataError if it has become shorter, or cannot be read.
        """
        with reads(self.where), self.open() as file:
            while wanted_bytes > 0:
                block = file.read(min(BLOCK_BYTES, wanted_bytes))
                if not block:
                    what = f"shrank by {wanted_bytes} bytes while it was read"
                    raise DataError(f"{self.where} {what}")
                wanted_bytes -= len(block)
                yield block


def row_document(where: str, content: bytes) -> Document:
    """The text of a row, which is in memory."""
    return Document(where, len(content), partial(io.BytesIO, content))


@dataclass(frozen=True)
class Corpus:
    """Documents that can be read again and again. Empty ones are none."""

    read: Callable[[], Iterator[Document]]
    max_bytes: int | None = None
    """Only so much of the texts is used, from their start."""
    about_bytes: int = 0
    """How large the files are that `read` reads, for who waits; 0: not known."""

    def survey(self, on_progress: Progress = silent) -> "Reading":
        """Reads all of it. Raises: as `Reading.texts`; DataError if there is no text."""
        reading, about = Reading(self), min(self.about_bytes, self.max_bytes or self.about_bytes)
        told = on_progress if about else silent
        for blocks in reading.texts():
            for _ in blocks:
                told(SURVEYING, reading.done_bytes, max(about, reading.done_bytes + 1))
        if not reading.done_bytes:
            raise DataError("the data files are all empty")
        told(SURVEYING, reading.done_bytes, reading.done_bytes)
        return reading


class Reading:
    """One pass through a corpus, which knows what it has read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._finished = hashlib.sha256()
        self._document = hashlib.sha256()
        self.where = ""
        """The document that is read."""
        self.documents = 0
        """Begun so far."""
        self.done_bytes = 0

    def texts(self) -> Iterator[Iterator[bytes]]:
        """Each text's blocks, to be read to their end before the next. What lies behind the limit
        is not asked for.

        Raises: DataError for what holds no text, is not there, or cannot be read.
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
        """sha256 hex of all texts that were read to their end, and where they end; names and
        containers do not matter."""
        return self._finished.hexdigest()

    def _counted(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._document.update(block)
            self.done_bytes += len(block)
            yield block


class Amount(NamedTuple):
    """How much there is to train on, for a person who compares it with another's.

    Of text: sequences of tokens. Of an own dataset: its samples, which have no tokens.
    """

    tokens: int
    """To train on; 0: the samples are no text."""
    samples: int
    """To train on."""
    held_back: int
    """For validation: tokens, or samples where there are no tokens."""

    def __str__(self) -> str:
        noun = "sequence" if self.tokens else "sample"
        told = f"{self.samples:,} {noun}{'' if self.samples == 1 else 's'} to train on"
        if self.tokens:
            told = f"{self.tokens:,} tokens, {told}"
        if not self.held_back:
            return told
        return f"{told}, {self.held_back:,}{' tokens' if self.tokens else ''} held back"
