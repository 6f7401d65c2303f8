"""Tokens on disk: written once, mapped into memory ever after.

One file per (text, tokenizer), named by their digest: a header of 256 bytes (JSON, padded with
spaces), then the tokens as this machine writes numbers. It is written under another name
and renamed when complete and synced, so a file with the right name is a whole file.
"""

import array
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atom.models.data.corpus import Corpus, DataError, Progress, Reading, silent
from atom.models.data.tokenizer import Tokenizer

TOKENISING = "tokenising"
HEADER_BYTES = 256
LOCK = "lock"
_FORMAT = "atom-tokens-1"
_PARTIAL = ".partial"
_TYPES = {"uint8": ("B", torch.uint8), "uint16": ("H", torch.uint16), "int32": ("i", torch.int32)}
"""The standard library's code of an array, and PyTorch's type. int32 holds every real vocabulary,
and unlike uint32 PyTorch can compute with it."""
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
    named = f"{_FORMAT}:{tokenizer.digest}:{survey.digest()}"
    path = folder / f"{hashlib.sha256(named.encode()).hexdigest()}.tokens"
    if (cached := _open(path)) is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (cached := _open(path)) is None:
            _write(path, _tokenised(corpus, survey, tokenizer, on_progress), tokenizer)
            cached = _open(path)
    if cached is None:
        raise OSError(f"{path} is not what was just written")
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


def _write(path: Path, runs: Iterator[Sequence[int]], tokenizer: Tokenizer) -> None:
    """The whole file, or none. Raises: OSError; what `runs` raises."""
    token_type, digest, count = _type_for(tokenizer.vocabulary_size), hashlib.sha256(), 0
    aside = path.with_suffix(_PARTIAL)
    try:
        with aside.open("wb") as file:
            file.write(bytes(HEADER_BYTES))
            for tokens in runs:
                raw = _raw(tokens, token_type)
                digest.update(raw)
                file.write(raw)
                count += len(tokens)
            file.seek(0)
            file.write(_header(token_type, count, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
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


def _open(path: Path) -> TokenFile | None:
    """None if there is no file, or one of another format or length."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER_BYTES))
        token_type, count, digest = header["type"], int(header["tokens"]), str(header["sha256"])
        _, dtype = _TYPES[token_type]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    size = HEADER_BYTES + count * dtype.itemsize
    if header.get("format") != _FORMAT or count < 1 or path.stat().st_size != size:
        return None
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return TokenFile(mapped[HEADER_BYTES:].view(dtype), digest)


def _raw(tokens: Sequence[int], token_type: str) -> bytes:
    if isinstance(tokens, bytes):
        return tokens  # of a ByteTokenizer, each its own number
    return array.array(_TYPES[token_type][0], tokens).tobytes()


def _type_for(vocabulary_size: int) -> str:
    if vocabulary_size <= 1 << 8:
        return "uint8"
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def _header(token_type: str, count: int, digest: str) -> bytes:
    fields = {"format": _FORMAT, "type": token_type, "tokens": count, "sha256": digest}
    return json.dumps(fields).encode().ljust(HEADER_BYTES)
