"""Cache of tokenised texts: written to disk once, then mapped into memory.

A file holds the tokens of one text by one tokenizer, in this machine's byte order. Its name has two
digests: one of the text and the tokenizer, by which it is found, and one of its content, which
reveals damage. It is written under a temporary name, and renamed once it is complete and synced.
"""

import array
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atom.models.data.corpus import Corpus, Progress, Reading, silent
from atom.models.data.tokenizer import Tokenizer
from atom.models.source import DataError

TOKENISING = "tokenising"
LOCK = "lock"
_FORMAT = "atom-tokens-1"
_PARTIAL = ".partial"
_COUNT_TOKENS = 1 << 24
"""Number of tokens to count at a time, so that little memory is needed."""
_GROUP_CHARACTERS = 1 << 22
_GROUP_PIECES = 1024


@dataclass(frozen=True)
class TokenFile:
    """Token file, mapped into memory."""

    tokens: Tensor
    """Tokens [count], in the dtype of the file."""
    digest: str
    """sha256 hex digest of the file's content."""

    def target_share(self) -> float:
        """Return the fraction of the tokens that are targets.

        Raises:
            DataError: there is no target.
        """
        parts = torch.split(self.tokens, _COUNT_TOKENS)
        share = sum(int((part >= 0).sum()) for part in parts) / len(self.tokens)
        if not share:
            raise DataError("no row has an answer", "name another table, or remove [data] train_on")
        return round(share, 6) or share


def cached_tokens(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, on_progress: Progress = silent
) -> TokenFile:
    """Return the corpus as tokens, from the cache if present, else tokenised now.

    A process waits while another one writes into the same folder. No partial file remains after an
    error.

    Args:
        corpus: the text.
        tokenizer: the tokenizer, whose digest is part of the cache's key.
        folder: folder of the cache; created if missing.
        on_progress: called from this thread.

    Raises:
        DataError: the text cannot be read or tokenised.
        OSError: the disk is full, or `folder` is not writable.
    """
    survey = corpus.survey(on_progress)
    key = f"{_FORMAT}:{tokenizer.digest}:{survey.digest()}"
    name = hashlib.sha256(key.encode()).hexdigest()
    code, dtype = _type_for(tokenizer)
    if (cached := _found(folder, name, dtype)) is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if (cached := _found(folder, name, dtype)) is None:
            _write(folder, name, _tokenised(corpus, survey, tokenizer, on_progress), code)
            cached = _found(folder, name, dtype)
    if cached is None:
        raise OSError(f"the token file just written to {folder} is damaged; check the disk")
    return cached


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, and remove partial files of killed processes. Raises: OSError."""
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for partial in folder.glob(f"*{_PARTIAL}"):
            partial.unlink()
        yield


def _found(folder: Path, name: str, dtype: torch.dtype) -> TokenFile | None:
    """Map the undamaged file of that name; return None if there is none."""
    for path in folder.glob(f"{name}.*.tokens"):
        digest = path.suffixes[0].removeprefix(".")
        with path.open("rb") as file:
            is_whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
        if is_whole:
            count = path.stat().st_size // dtype.itemsize
            tokens = torch.from_file(str(path), shared=False, size=count, dtype=dtype)
            return TokenFile(tokens, digest)
    return None


def _write(folder: Path, name: str, runs: Iterator[Sequence[int]], code: str) -> None:
    """Write a complete token file, or none if `runs` raises. Raises: OSError; errors of `runs`."""
    digest, partial = hashlib.sha256(), folder / f"{name}{_PARTIAL}"
    try:
        with partial.open("wb") as file:
            for tokens in runs:
                raw = array.array(code, tokens).tobytes()
                digest.update(raw)
                file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / f"{name}.{digest.hexdigest()}.tokens")
    finally:
        partial.unlink(missing_ok=True)


def _tokenised(
    corpus: Corpus, survey: Reading, tokenizer: Tokenizer, on_progress: Progress
) -> Iterator[Sequence[int]]:
    """Yield all tokens of the corpus, separators included, in runs of any length.

    Args:
        corpus: the text.
        survey: the preceding pass through the corpus, with the digest to expect.
        tokenizer: the tokenizer.
        on_progress: called after each group of pieces.

    Raises:
        DataError: the text cannot be tokenised, or has changed since the survey.
    """
    reading, any_token = Reading(corpus), False
    for group in _groups(_pieces(reading, tokenizer)):
        encoded = tokenizer.encode([piece for _, piece in group])
        for (separated, _), tokens in zip(group, encoded, strict=True):
            if separated:
                yield tokenizer.separator
            yield tokens
            any_token = any_token or bool(len(tokens))
        on_progress(TOKENISING, reading.done_bytes, survey.done_bytes)
    if reading.digest() != survey.digest():
        raise DataError(
            "the text changed while it was tokenised", "start again when it is complete"
        )
    if not any_token:
        raise DataError(
            "the tokenizer turns the text into no tokens", "use one that knows its characters"
        )


def _pieces(reading: Reading, tokenizer: Tokenizer) -> Iterator[tuple[bool, Any]]:
    """Yield (True if a separator precedes the piece, piece) for the whole text."""
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
    """Group pieces so that each group keeps the tokenizer's threads busy.

    The next pieces are read only after the group has been consumed.
    """
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


def _type_for(tokenizer: Tokenizer) -> tuple[str, torch.dtype]:
    """Return the narrowest type for the tokens: the code of `array.array`, and PyTorch's dtype.

    Large vocabularies and complemented tokens (which are negative) take int32: it holds every real
    vocabulary, and PyTorch can compute with it, unlike with uint32.
    """
    if tokenizer.complements or tokenizer.vocabulary_size > 1 << 16:
        return "i", torch.int32
    return ("B", torch.uint8) if tokenizer.vocabulary_size <= 1 << 8 else ("H", torch.uint16)
