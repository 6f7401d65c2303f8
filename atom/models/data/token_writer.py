"""Tokenising that survives its interruption: tokens as they come, and a journal beside them.

Every CHECKPOINT_BYTES of text the tokens so far are synced, then a journal of one line is written
in the old one's place: how many pieces of text they are of, and the digests of both. Who goes on
reads the text up to there without tokenising it. If tokens or text are not what the journal says,
nothing of them is used. So the file is the same, bit for bit, however often it was interrupted.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atom.models.data.corpus import Corpus, DataError, DataUnreachable, Progress, Reading, Survey
from atom.models.data.tokenizer import Tokenizer
from atom.models.data.unfinished import Unfinished, remove_abandoned, unfinished

CHECKPOINT_BYTES = 32 << 20
_GROUP_CHARACTERS = 1 << 22
_GROUP_PIECES = 1024

TOKENISING = "tokenising"
Header = Callable[[int, str], bytes]
"""(tokens, their sha256 hex) → HEADER_BYTES."""


def write_tokens(path: Path, token_type: str, tokenising: "Tokenising", header: Header) -> None:
    """Writes the token file `path`, whole and synced, or goes on with writing it.

    Raises: ValueError if the text cannot be tokenised, or changes meanwhile; OSError. What was
    written is kept if it can be gone on with.
    """
    remove_abandoned(path.parent, time.time())
    with unfinished(path, token_type) as output:
        try:
            tokenising.run(output)
            output.finish(header(output.tokens, output.sha256.hexdigest()), path)
        except BaseException as error:
            # An error in the text comes again; an interruption, or a full disk, may pass.
            lasting = isinstance(error, ValueError) and not isinstance(error, DataUnreachable)
            if lasting or not output.resumable:
                output.discard()
            raise


class Tokenising:
    """One pass from a corpus to its tokens."""

    def __init__(
        self, corpus: Corpus, survey: Survey | None, tokenizer: Tokenizer, on_progress: Progress
    ) -> None:
        """`survey`: what the corpus was just now; None if it was not read."""
        self._reading = Reading(corpus)
        self._limits = corpus.limits
        self._survey = survey
        self._tokenizer = tokenizer
        self._on_progress = on_progress

    def run(self, output: Unfinished) -> None:
        """Appends what `output` lacks. Raises: as `write_tokens`."""
        reading, pieces = self._reading, self._pieces()
        done = self._skip(output, pieces)
        saved_bytes = reading.done_bytes
        for group in _groups(pieces):
            self._encode(group, output)
            done += len(group)
            self._tell(reading.done_bytes)
            if reading.done_bytes - saved_bytes >= CHECKPOINT_BYTES:
                saved_bytes = reading.done_bytes
                output.save(done, saved_bytes, reading.place())
        if not reading.documents:
            raise DataError("there is no text in the data")
        if not output.tokens:
            raise DataError(
                "the tokenizer makes no token of the text", "take one that knows its characters"
            )
        if self._survey is None:
            self._on_progress(TOKENISING, reading.done_bytes, reading.done_bytes)
        elif reading.digest() != self._survey.digest:
            raise _changed()

    def _skip(self, output: Unfinished, pieces: Iterator[Any]) -> int:
        """Reads what `output` has the tokens of, and returns of how many pieces they are."""
        known = output.resume()
        if known is None:
            return 0
        self._tell(known.text_bytes)
        for _ in zip(range(known.pieces), pieces, strict=False):
            pass
        if self._reading.place() != known.text_sha256:
            raise _changed()
        return known.pieces

    def _pieces(self) -> Iterator[tuple[bool, Any]]:
        """(whether a separator comes before it, piece)."""
        for blocks in self._reading.texts():
            separated = self._reading.documents > 1
            try:
                for piece in self._tokenizer.pieces(blocks):
                    yield separated, piece
                    separated = False
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{self._reading.where} is not UTF-8 text: {error}",
                    'convert it, leave it out, or use tokenizer = "bytes"',
                ) from error

    def _encode(self, group: list[tuple[bool, Any]], output: Unfinished) -> None:
        encoded = self._tokenizer.encode([piece for _, piece in group])
        for (separated, _), tokens in zip(group, encoded, strict=True):
            if separated:
                output.append(self._tokenizer.separator)
            output.append(tokens)

    def _tell(self, done_bytes: int) -> None:
        total = self._expected(done_bytes) if self._survey is None else self._survey.total_bytes
        self._on_progress(TOKENISING, done_bytes, total)

    def _expected(self, done_bytes: int) -> int:
        """Of a text that was never read: more than what is done, for it may be the limit's."""
        if self._limits.max_bytes is not None:
            return max(self._limits.max_bytes, done_bytes + 1)
        share = (self._limits.max_documents or 0) / max(1, self._reading.documents)
        return max(int(done_bytes * share), done_bytes + 1)


def _groups(pieces: Iterator[tuple[bool, Any]]) -> Iterator[list[tuple[bool, Any]]]:
    """So many at once that threads are busy; none is taken before the group is used."""
    group: list[tuple[bool, Any]] = []
    characters = 0
    for separated, piece in pieces:
        group.append((separated, piece))
        characters += len(piece)
        if len(group) == _GROUP_PIECES or characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _changed() -> DataError:
    return DataError("the text changed while it was tokenised", "begin again when it is whole")
