"""Tokens on disk: written once, mapped into memory ever after.

One file per (text, tokenizer), which holds the tokens as this machine writes numbers. Its name has
two digests: of the text and the tokenizer, by which it is found, and of its own content, by which
damage is. It is written under another name, and renamed when it is complete and synced.
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
_GROUP_CHARACTERS = 1 << 22
_GROUP_PIECES = 1024


@dataclass(frozen=True)
class TokenFile:
    """A mapped token file: its tokens [count] in the file's own type, and their sha256 hex."""

    tokens: Tensor
    digest: str


def cached_tokens(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, on_progress: Progress = silent
) -> TokenFile:
    """The corpus as tokens, from the cache if it is there, else tokenised now. A process that
    comes while another one writes into the same folder waits for it.

    Raises: ValueError if the text cannot be tokenised; OSError if the disk is full or `folder` is
    not writable. What was written until then is gone.
    """
    survey = corpus.survey(on_progress)
    told = f"{_FORMAT}:{tokenizer.digest}:{survey.digest()}"
    name = hashlib.sha256(told.encode()).hexdigest()
    code, dtype = _type_for(tokenizer)
    if (cached := _found(folder, name, dtype)) is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (cached := _found(folder, name, dtype)) is None:
            _write(folder, name, _tokenised(corpus, survey, tokenizer, on_progress), code)
            cached = _found(folder, name, dtype)
    if cached is None:
        raise OSError(f"the tokens in {folder} are not what was just written")
    return cached


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process writes into the folder, from which what a killed one left is taken
    away. Raises: OSError."""
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"*{_PARTIAL}"):
            left.unlink()
        yield


def _found(folder: Path, name: str, dtype: torch.dtype) -> TokenFile | None:
    """None if there is no file of that name whose content is whole."""
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
    """The whole file, or none. Raises: OSError; what `runs` raises."""
    digest, aside = hashlib.sha256(), folder / f"{name}{_PARTIAL}"
    try:
        with aside.open("wb") as file:
            for tokens in runs:
                raw = array.array(code, tokens).tobytes()
                digest.update(raw)
                file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, folder / f"{name}.{digest.hexdigest()}.tokens")
    finally:
        aside.unlink(missing_ok=True)


def _tokenised(
    corpus: Corpus, survey: Reading, tokenizer: Tokenizer, on_progress: Progress
) -> Iterator[Sequence[int]]:
    """All tokens, in runs of any length, separators included. `survey`: what the corpus was just
    now.

    Raises: DataError if it cannot be tokenised, or changes meanwhile.
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
        raise DataError("the text changed while it was tokenised", "begin again when it is whole")
    if not any_token:
        raise DataError(
            "the tokenizer makes no token of the text", "take one that knows its characters"
        )


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


def _type_for(tokenizer: Tokenizer) -> tuple[str, torch.dtype]:
    """The narrowest type: its code in the standard library's arrays, and PyTorch's. int32 holds
    every real vocabulary, and unlike uint32 PyTorch can compute with it; and complements."""
    if tokenizer.complements or tokenizer.vocabulary_size > 1 << 16:
        return "i", torch.int32
    return ("B", torch.uint8) if tokenizer.vocabulary_size <= 1 << 8 else ("H", torch.uint16)
