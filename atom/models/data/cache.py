"""Tokens on disk: written once, mapped into memory ever after.

One file per (text, tokenizer), named by their digest: a header of 256 bytes (JSON, padded with
spaces), then the tokens in the machine's little-endian order. It is written under another name
and renamed when complete and synced, so a file with the right name is a whole file. A writer holds
a lock on its unfinished file: whoever finds one unlocked knows that its writer died, and removes
it.
"""

import array
import contextlib
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.models.data.corpus import Corpus
from atom.models.data.tokenizer import Tokenizer

_HEADER_BYTES = 256
_FORMAT = "atom-tokens-1"
_PARTIAL = ".partial"
# Array type codes of the standard library beside PyTorch's types; int32 holds every real
# vocabulary, and unlike uint32 PyTorch can compute with it.
_TYPES = {"uint8": ("B", torch.uint8), "uint16": ("H", torch.uint16), "int32": ("i", torch.int32)}

Progress = Callable[[int, int], None]
"""Called with (bytes of text done, bytes of text in all), from the thread that tokenises."""


@dataclass(frozen=True)
class TokenFile:
    """A mapped token file: its tokens [count] in the file's own type, and their sha256 hex."""

    tokens: Tensor
    digest: str


def cached_tokens(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, on_progress: Progress | None = None
) -> TokenFile:
    """The corpus as tokens, from the cache if it is there, else tokenised now.

    Raises: ValueError if the text cannot be tokenised; OSError if the disk is full or `folder`
    is not writable. Either way nothing is left behind.
    """
    key = hashlib.sha256(f"{_FORMAT}:{tokenizer.digest}:{corpus.digest()}".encode()).hexdigest()
    path = folder / f"{key}.tokens"
    cached = _open(path)
    if cached is not None:
        return cached
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    _write(path, corpus, tokenizer, on_progress or _silent)
    written = _open(path)
    if written is None:
        raise OSError(f"{path} is not what was just written")
    return written


def _open(path: Path) -> TokenFile | None:
    """None if there is no file, or one of another format or length."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES))
        token_type, count, digest = header["type"], int(header["tokens"]), str(header["sha256"])
        dtype = _TYPES[token_type][1]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    size = _HEADER_BYTES + count * dtype.itemsize
    if header.get("format") != _FORMAT or count < 1 or path.stat().st_size != size:
        return None
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return TokenFile(mapped[_HEADER_BYTES:].view(dtype), digest)


def _write(path: Path, corpus: Corpus, tokenizer: Tokenizer, on_progress: Progress) -> None:
    descriptor, name = tempfile.mkstemp(_PARTIAL, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(bytes(_HEADER_BYTES))
            token_type = _type_for(tokenizer.vocabulary_size)
            count, digest = 0, hashlib.sha256()
            for tokens in _token_runs(corpus, tokenizer, on_progress):
                raw = _raw(tokens, token_type)
                digest.update(raw)
                count += len(tokens)
                file.write(raw)
            file.seek(0)
            file.write(_header(token_type, count, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _token_runs(
    corpus: Corpus, tokenizer: Tokenizer, on_progress: Progress
) -> Iterator[Sequence[int]]:
    done = 0

    def counted(blocks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for block in blocks:
            yield block
            done += len(block)
            on_progress(done, corpus.total_bytes)

    for index, blocks in enumerate(corpus.documents()):
        if index and tokenizer.separator:
            yield tokenizer.separator
        try:
            yield from tokenizer.encode(counted(blocks))
        except UnicodeDecodeError as error:
            raise ValueError(f"{corpus.files[index]} is not UTF-8 text: {error}") from error


def _raw(tokens: Sequence[int], token_type: str) -> bytes:
    if isinstance(tokens, bytes) and token_type == "uint8":
        return tokens
    values = array.array(_TYPES[token_type][0], tokens)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _type_for(vocabulary_size: int) -> str:
    if vocabulary_size <= 1 << 8:
        return "uint8"
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def _header(token_type: str, count: int, digest: str) -> bytes:
    fields = {"format": _FORMAT, "type": token_type, "tokens": count, "sha256": digest}
    return json.dumps(fields).encode().ljust(_HEADER_BYTES)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"*{_PARTIAL}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _silent(done_bytes: int, total_bytes: int) -> None:
    return None
