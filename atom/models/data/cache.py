"""Tokens on disk: written once, mapped into memory ever after.

One file per (text, tokenizer), named by their digest: a header of 256 bytes (JSON, padded with
spaces), then the tokens in the machine's little-endian order. It is written under another name
and renamed when complete and synced, so a file with the right name is a whole file.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.models.data.corpus import Corpus, Progress, silent
from atom.models.data.token_writer import Tokenising, write_tokens
from atom.models.data.tokenizer import Tokenizer
from atom.models.data.unfinished import HEADER_BYTES

_FORMAT = "atom-tokens-1"
_TYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "int32": torch.int32}


@dataclass(frozen=True)
class TokenFile:
    """A mapped token file: its tokens [count] in the file's own type, and their sha256 hex."""

    tokens: Tensor
    digest: str


def cached_tokens(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, on_progress: Progress = silent
) -> TokenFile:
    """The corpus as tokens, from the cache if it is there, else tokenised now.

    Raises: ValueError if the text cannot be tokenised, after which nothing is left behind; OSError
    if the disk is full or `folder` is not writable. What was interrupted is gone on with.
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
    token_type = _type_for(tokenizer.vocabulary_size)
    tokenising = Tokenising(corpus, survey, tokenizer, on_progress)
    write_tokens(path, token_type, tokenising, lambda *told: _header(token_type, *told))
    written = _open(path)
    if written is None:
        raise OSError(f"{path} is not what was just written")
    return written


def _open(path: Path) -> TokenFile | None:
    """None if there is no file, or one of another format or length."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(HEADER_BYTES))
        token_type, count, digest = header["type"], int(header["tokens"]), str(header["sha256"])
        dtype = _TYPES[token_type]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    size = HEADER_BYTES + count * dtype.itemsize
    if header.get("format") != _FORMAT or count < 1 or path.stat().st_size != size:
        return None
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    return TokenFile(mapped[HEADER_BYTES:].view(dtype), digest)


def _type_for(vocabulary_size: int) -> str:
    if vocabulary_size <= 1 << 8:
        return "uint8"
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def _header(token_type: str, count: int, digest: str) -> bytes:
    fields = {"format": _FORMAT, "type": token_type, "tokens": count, "sha256": digest}
    return json.dumps(fields).encode().ljust(HEADER_BYTES)
