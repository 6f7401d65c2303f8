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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from atom.models.data.corpus import Corpus, Progress, silent
from atom.models.data.tokenising import tokenised
from atom.models.data.tokenizer import Tokenizer

HEADER_BYTES = 256
_FORMAT = "atom-tokens-1"
_PARTIAL = ".partial"
_TYPES = {"uint8": ("B", torch.uint8), "uint16": ("H", torch.uint16), "int32": ("i", torch.int32)}
"""The standard library's code of an array, and PyTorch's type. int32 holds every real vocabulary,
and unlike uint32 PyTorch can compute with it."""


@dataclass(frozen=True)
class TokenFile:
    """A mapped token file: its tokens [count] in the file's own type, and their sha256 hex."""

    tokens: Tensor
    digest: str


def cached_tokens(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, on_progress: Progress = silent
) -> TokenFile:
    """The corpus as tokens, from the cache if it is there, else tokenised now. A process that
    comes while another one tokenises the same text waits for it.

    Raises: ValueError if the text cannot be tokenised; OSError if the disk is full or `folder` is
    not writable. What was written until then is gone.
    """
    survey = None if corpus.origin else corpus.survey(on_progress)
    content = corpus.origin if survey is None else survey.digest
    key = hashlib.sha256(f"{_FORMAT}:{tokenizer.digest}:{content}".encode()).hexdigest()
    path = folder / f"{key}.tokens"
    cached = _open(path)
    if cached is not None:
        return cached
    if survey is None and not corpus.limits.bounded:
        survey = corpus.survey(on_progress)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    with _alone(path.with_suffix(_PARTIAL)) as file:
        cached = _open(path)
        if cached is not None:
            return cached
        token_type, digest, count = _type_for(tokenizer.vocabulary_size), hashlib.sha256(), 0
        file.write(bytes(HEADER_BYTES))
        for tokens in tokenised(corpus, survey, tokenizer, on_progress):
            raw = _raw(tokens, token_type)
            digest.update(raw)
            file.write(raw)
            count += len(tokens)
        file.seek(0)
        file.write(_header(token_type, count, digest.hexdigest()))
        file.flush()
        os.fsync(file.fileno())
        os.replace(path.with_suffix(_PARTIAL), path)
    written = _open(path)
    if written is None:
        raise OSError(f"{path} is not what was just written")
    return written


@contextmanager
def _alone(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, empty, while no other process has it. If it is still at `path` when the
    block is left with an error, it is removed. Raises: OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _lies_at(file, path):
                continue  # who had it has finished it, or given up
            file.truncate()
            try:
                yield file
            finally:
                if _lies_at(file, path):
                    path.unlink()
            return


def _lies_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _remove_abandoned(folder: Path) -> None:
    """What a killed process left."""
    for path in folder.glob(f"*{_PARTIAL}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _lies_at(file, path):
                path.unlink()


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
