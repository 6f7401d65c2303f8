"""Tokenizers, which turn text into token numbers: raw bytes, or a `tokenizers` file."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from atom.models.source import DataError

_PIECE_CHARACTERS = 1 << 18
"""Minimum number of characters per encoded piece, which also ends at the end of a line.

The cuts affect the tokens next to them, so this number is part of a `JsonTokenizer`'s digest.
"""
_LINE_CHARACTERS = 1 << 23
"""Maximum length of a piece: a longer line is cut anywhere, so that memory stays bounded."""
_HINT = "name a tokenizer.json: [data] tokenizer, in the run file or in your peer file"
_MAX_VOCABULARY = 1 << 31
"""Maximum vocabulary size: token files store large vocabularies as int32."""
_SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""Known end-of-text tokens, in order of preference."""


class Tokenizer(Protocol):
    """Interface that turns the bytes of documents into token numbers below `vocabulary_size`."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the tokenizer can produce."""

    @property
    def digest(self) -> str:
        """sha256 hex digest of all data that decides the tokens."""

    @property
    def content(self) -> bytes:
        """Content of the tokenizer.json; empty if there is none."""

    @property
    def separator(self) -> Sequence[int]:
        """Tokens to put between two documents."""

    @property
    def complements(self) -> bool:
        """True if a token t that is not a target is encoded as ~t."""

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[Any]:
        """Cut the blocks of one document into pieces that can be encoded independently.

        A piece has a length, and a type that `encode` accepts.

        Raises:
            ValueError: the bytes are not text.
        """

    def encode(self, pieces: Sequence[Any]) -> Iterable[Sequence[int]]:
        """Return the tokens of each piece; the pieces may be of several documents.

        Raises:
            ValueError: the tokenizer has no token for some text.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens; incomplete characters become "�"."""


class ByteTokenizer:
    """Tokenizer with one token per byte, for any file; a newline separates documents."""

    vocabulary_size = 256
    digest = hashlib.sha256(b"bytes").hexdigest()
    content = b""
    separator: Sequence[int] = (10,)
    complements = False

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Return the blocks unchanged."""
        return iter(blocks)

    def encode(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Return the pieces unchanged, because bytes already are numbers below 256."""
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class JsonTokenizer:
    """Tokenizer of a tokenizer.json; its end-of-text token, if it has one, separates documents."""

    complements = False

    def __init__(self, path: Path) -> None:
        """Load the file.

        Raises:
            DataError: the file is missing, malformed or unusable.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"tokenizer {path} cannot be read: {error.strerror}", _HINT) from error
        self._tokenizer = _parse_tokenizer(content, path)
        _disable_batching(self._tokenizer)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError(f"tokenizer {path} has an empty vocabulary", _HINT)
        # Token numbers may have gaps, so the size follows from the highest one.
        self.vocabulary_size = max(vocabulary.values()) + 1
        if self.vocabulary_size > _MAX_VOCABULARY:
            what = f"tokenizer {path} has a token numbered {self.vocabulary_size - 1:,}: too high"
            raise DataError(what, _HINT)
        self._path = path
        self.digest = hashlib.sha256(f"{_PIECE_CHARACTERS}:".encode() + content).hexdigest()
        self.content = content
        self._separators = [text for text in _SEPARATORS if text in vocabulary][:1]
        self.separator: Sequence[int] = tuple(vocabulary[text] for text in self._separators)

    @property
    def separator_text(self) -> str | None:
        """Text of the token between documents; None if there is none."""
        return self._separators[0] if self._separators else None

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[str]:
        """Cut one document into groups of whole lines.

        Raises:
            ValueError: the document is not UTF-8.
        """
        return _pieces(_characters(blocks))

    def encode(self, pieces: Sequence[str]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each piece, computed in the library's threads.

        Raises:
            DataError: the tokenizer has no token for some text.
        """
        for encoding in self.encodings(pieces):
            yield encoding.ids

    def encodings(self, pieces: Sequence[str]) -> Sequence[Any]:
        """Return the library's encodings, with `ids` and their `offsets` in the piece.

        Raises:
            DataError: the tokenizer has no token for some text.
        """
        hint = "use one that has a token for unknown characters, or for every byte"
        with _library_errors(f"tokenizer {self._path} cannot encode the text", hint):
            found: Sequence[Any] = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens, special tokens included."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def load_tokenizer(tokenizer: str | Path) -> Tokenizer:
    """Load the tokenizer "bytes", or a tokenizer.json by its path.

    Raises:
        DataError: the file cannot be used.
    """
    return ByteTokenizer() if tokenizer == "bytes" else JsonTokenizer(Path(tokenizer))


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a whole text.

    Raises:
        ValueError: the tokenizer has no token for some of the text.
    """
    pieces = list(tokenizer.pieces([text.encode()]))
    return [token for tokens in tokenizer.encode(pieces) for token in tokens]


def byte_level_tokenizer() -> str:
    """Return a tokenizer.json equivalent to `ByteTokenizer`, with 256 tokens and no merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Byte-level tokenizers write a byte as its Latin-1 character if that is visible, else as the
    # next unused character from U+0100 on.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    signs = [chr(byte if byte in visible else next(others)) for byte in range(256)]
    built = Tokenizer(models.BPE({sign: byte for byte, sign in enumerate(signs)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    return str(built.to_str(pretty=True)) + "\n"


def _parse_tokenizer(content: bytes, path: Path) -> Any:
    import tokenizers  # imported late, because the "bytes" tokenizer does not need it

    with _library_errors(f"{path} is not a tokenizer.json", _HINT):
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))


@contextmanager
def _library_errors(what: str, hint: str) -> Iterator[None]:
    """Turn the library's errors into DataError(f"{what}: {error}", hint).

    The library raises a bare Exception for any problem. On unexpected ones it panics, which is a
    BaseException whose class cannot be imported.
    """
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {error}", hint) from error


def _disable_batching(tokenizer: Any) -> None:
    """Switch off truncation, padding and dropout of merges, which the file may ask for.

    They would lose text, add tokens, or give different tokens each time.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None


def _characters(blocks: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for block in blocks:
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Cut after the first newline once a piece is long enough, independently of the blocks."""
    held = ""
    for text in texts:
        held += text
        while len(held) >= _PIECE_CHARACTERS:
            end = held.find("\n", _PIECE_CHARACTERS - 1, _LINE_CHARACTERS) + 1
            if not end and len(held) < _LINE_CHARACTERS:
                break
            end = end or _LINE_CHARACTERS
            yield held[:end]
            held = held[end:]
    if held:
        yield held
