"""Cache of tokenised texts: written to disk once, then mapped into memory.

A file holds the tokens of one text by one tokenizer, in this machine's byte order. Its name has two
digests: one of the text and the tokenizer, by which it is found, and one of its content, which
reveals damage. It is written under a temporary name, and renamed once it is complete and synced.
"""

import array
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atom.base.errors import ConfigError
from atom.models.data.account import LOST_TEXT, Account, LostText, check_lost
from atom.models.data.corpus import Corpus, Progress, Reading, silent
from atom.models.data.tokenizer import Tokenizer

TOKENISING = "tokenising"
LOCK = "lock"
_FORMAT = "atom-tokens-2"
_PARTIAL = ".partial"
_LOST = ".lost"
"""Suffix of the file with the number and the place of lost characters, if there are any."""
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
    account: Account = field(default_factory=Account, compare=False)
    """What was read and omitted; empty for a text that comes from other peers."""

    def target_share(self) -> float:
        """Return the fraction of the tokens that are targets.

        Raises:
            ConfigError: there is no target.
        """
        parts = torch.split(self.tokens, _COUNT_TOKENS)
        share = sum(int((part >= 0).sum()) for part in parts) / len(self.tokens)
        if not share:
            raise ConfigError(
                "no row has an answer", "name another table, or remove [data] train_on"
            )
        return round(share, 6) or share

    def largest(self) -> int:
        """Return the largest token that occurs, whether it is a target or not."""
        parts = (part.to(torch.int32) for part in torch.split(self.tokens, _COUNT_TOKENS))
        return max(int(torch.maximum(part, ~part).max()) for part in parts)


def cached_tokens(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    on_progress: Progress = silent,
    lost_text: float = LOST_TEXT,
) -> TokenFile:
    """Return the corpus as tokens, from the cache if present, else tokenised now.

    A process waits while another one writes into the same folder. No partial file remains after an
    error.

    Args:
        corpus: the text.
        tokenizer: the tokenizer, whose digest is part of the cache's key.
        folder: folder of the cache; created if missing.
        on_progress: called from this thread.
        lost_text: share of the characters that the tokenizer may lose.

    Raises:
        ConfigError: the text cannot be read or tokenised, or more of it is lost than is allowed.
        OSError: the disk is full, or `folder` is not writable.
    """
    survey = corpus.survey(on_progress)
    key = f"{_FORMAT}:{tokenizer.digest}:{survey.digest()}"
    name = hashlib.sha256(key.encode()).hexdigest()
    code, dtype = _type_for(tokenizer)
    account = survey.account
    cached = _found(folder, name, dtype, account)
    if cached is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if (cached := _found(folder, name, dtype, account)) is None:
                runs = _tokenised(corpus, survey, tokenizer, on_progress, lost_text)
                _write(folder, name, runs, code, account)
                cached = _found(folder, name, dtype, account)
    if cached is None:
        raise OSError(f"the token file just written to {folder} is damaged; check the disk")
    with suppress(FileNotFoundError):
        account.lost, account.first_lost = json.loads((folder / f"{name}{_LOST}").read_bytes())
    check_lost(account, lost_text)
    return cached


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, and remove partial files of killed processes. Raises: OSError."""
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for partial in folder.glob(f"*{_PARTIAL}"):
            partial.unlink()
        yield


def _found(folder: Path, name: str, dtype: torch.dtype, account: Account) -> TokenFile | None:
    """Map the undamaged file of that name; return None if there is none.

    The map is shared: a private one would count as memory, of which a large text may have less. The
    tokens are never changed.
    """
    for path in folder.glob(f"{name}.*.tokens"):
        digest = path.suffixes[0].removeprefix(".")
        with path.open("rb") as file:
            is_whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
        if is_whole:
            count = path.stat().st_size // dtype.itemsize
            tokens = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
            account.tokens = count
            return TokenFile(tokens, digest, account)
    return None


def _write(
    folder: Path, name: str, runs: Iterator[Sequence[int]], code: str, account: Account
) -> None:
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
        if account.lost:
            lost = json.dumps([account.lost, account.first_lost])
            with (folder / f"{name}{_LOST}").open("w", encoding="utf-8") as file:
                file.write(lost)
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, folder / f"{name}.{digest.hexdigest()}.tokens")
    finally:
        partial.unlink(missing_ok=True)


class _Part(NamedTuple):
    """Piece of a document."""

    begins: bool
    """True if the piece begins a document."""
    piece: Any
    where: str
    """Name of the document."""
    position: int
    """Place of the piece in the document, in characters from 0."""


def _tokenised(
    corpus: Corpus,
    survey: Reading,
    tokenizer: Tokenizer,
    on_progress: Progress,
    lost_text: float,
) -> Iterator[Sequence[int]]:
    """Yield all tokens of the corpus, separators included, in runs of any length.

    Args:
        corpus: the text.
        survey: the preceding pass through the corpus, with the digest to expect. Lost characters
            are added to its account.
        tokenizer: the tokenizer.
        on_progress: called after each group of pieces.
        lost_text: share of the characters that the tokenizer may lose.

    Raises:
        ConfigError: the text cannot be tokenised, loses too many characters, or has changed since
            the survey.
    """
    reading, before = Reading(corpus), None
    lost = LostText(tokenizer, survey.account) if tokenizer.content else None
    for group in _groups(_parts(reading, tokenizer)):
        encoded = tokenizer.encode([part.piece for part in group])
        for part, tokens in zip(group, encoded, strict=True):
            if part.begins:
                yield tokenizer.border(before, part.piece, tokens)
            if lost is not None:
                text = getattr(part.piece, "text", part.piece)
                lost.count(text, tokens, part.where, part.position)
            yield tokens
            before = tokens if len(tokens) else before
        on_progress(TOKENISING, reading.done_bytes, survey.done_bytes)
    if reading.digest() != survey.digest():
        raise ConfigError(
            "the text changed while it was tokenised", "start again when it is complete"
        )
    check_lost(survey.account, lost_text)
    if before is None:
        raise ConfigError(
            "the tokenizer turns the text into no tokens", "use one that knows its characters"
        )


def _parts(reading: Reading, tokenizer: Tokenizer) -> Iterator[_Part]:
    """Yield the pieces of the whole text."""
    for blocks in reading.texts():
        begins, position = True, 0
        try:
            for piece in tokenizer.pieces(blocks):
                yield _Part(begins, piece, reading.where, position)
                begins, position = False, position + len(piece)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{reading.where} is not UTF-8 text: {error}",
                'convert it, leave it out, or use tokenizer = "bytes"',
            ) from error


def _groups(parts: Iterator[_Part]) -> Iterator[list[_Part]]:
    """Group pieces so that each group keeps the tokenizer's threads busy.

    The next pieces are read only after the group has been consumed.
    """
    group: list[_Part] = []
    characters = 0
    for part in parts:
        group.append(part)
        characters += len(part.piece)
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
