"""One pass from a corpus to its tokens, piece by piece."""

from collections.abc import Iterator, Sequence
from typing import Any

from atom.models.data.corpus import Corpus, DataError, Limits, Progress, Reading, Survey
from atom.models.data.tokenizer import Tokenizer

TOKENISING = "tokenising"
_GROUP_CHARACTERS = 1 << 22
_GROUP_PIECES = 1024


def tokenised(
    corpus: Corpus, survey: Survey | None, tokenizer: Tokenizer, on_progress: Progress
) -> Iterator[Sequence[int]]:
    """All tokens, in runs of any length, separators included. `survey`: what the corpus was just
    now; None if it was not read.

    Raises: DataError if there is nothing to tokenise, it cannot be, or it changes meanwhile.
    """
    reading, any_token = Reading(corpus), False
    for group in _groups(_pieces(reading, tokenizer)):
        encoded = tokenizer.encode([piece for _, piece in group])
        for (separated, _), tokens in zip(group, encoded, strict=True):
            if separated:
                yield tokenizer.separator
            yield tokens
            any_token = any_token or bool(len(tokens))
        done = reading.done_bytes
        total = _expected(corpus.limits, reading) if survey is None else survey.total_bytes
        on_progress(TOKENISING, done, total)
    if not reading.documents:
        raise DataError("there is no text in the data")
    if not any_token:
        raise DataError(
            "the tokenizer makes no token of the text", "take one that knows its characters"
        )
    if survey is None:
        on_progress(TOKENISING, reading.done_bytes, reading.done_bytes)
    elif reading.digest() != survey.digest:
        raise DataError("the text changed while it was tokenised", "begin again when it is whole")


def _pieces(reading: Reading, tokenizer: Tokenizer) -> Iterator[tuple[bool, Any]]:
    """(whether a separator comes before it, piece)."""
    for blocks in reading.texts():
        separated = reading.documents > 1
        try:
            for piece in tokenizer.pieces(blocks):
                yield separated, piece
                separated = False
        except UnicodeDecodeError as error:
            raise DataError(
                f"{reading.where} is not UTF-8 text: {error}",
                'convert it, leave it out, or use tokenizer = "bytes"',
            ) from error


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


def _expected(limits: Limits, reading: Reading) -> int:
    """Bytes of a text that was never read: more than what is done, for it may be the limit's."""
    if limits.max_bytes is not None:
        return max(limits.max_bytes, reading.done_bytes + 1)
    share = (limits.max_documents or 0) / max(1, reading.documents)
    return max(int(reading.done_bytes * share), reading.done_bytes + 1)
