"""Text to token numbers: raw bytes, or a tokenizer.json of the `tokenizers` library."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from atom.models.source import DataError

_PIECE_CHARACTERS = 1 << 18
"""Text is encoded in pieces of at least this many characters that end with a line.

The pieces decide the tokens next to each cut: a change of this number changes every digest.
"""
_LINE_CHARACTERS = 1 << 23
"""A line longer than this is cut where it stands, so that memory stays bounded."""
_HINT = "name a tokenizer.json: [data] tokenizer, in the run file or in your peer file"
_MOST_NUMBERS = 1 << 31
"""What int32 holds, in which large vocabularies lie on disk."""
_SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")


class Tokenizer(Protocol):
    """Turns the bytes of one document, block by block, into token numbers below the size."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def digest(self) -> str:
        """sha256 hex of everything that decides the tokens."""

    @property
    def content(self) -> bytes:
        """Of its tokenizer.json; empty: it has none."""

    @property
    def separator(self) -> Sequence[int]:
        """Tokens between two documents."""

    @property
    def complements(self) -> bool:
        """Whether a token t that is no target is given as ~t."""

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[Any]:
        """One document cut into what can be encoded apart: bytes, or a text.

        Raises: ValueError if the bytes are not text.
        """

    def encode(self, pieces: Sequence[Any]) -> Iterable[Sequence[int]]:
        """The tokens of each piece, of whatever documents.

        Raises: ValueError for what it has no token for.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; what is no text yet is "�"."""


class ByteTokenizer:
    """One token per byte; takes any file. Documents are separated by a newline."""

    vocabulary_size = 256
    digest = hashlib.sha256(b"bytes").hexdigest()
    content = b""
    separator: Sequence[int] = (10,)
    complements = False

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks as they are."""
        return iter(blocks)

    def encode(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Unchanged: bytes are already numbers below 256."""
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class JsonTokenizer:
    """A tokenizer.json; documents are separated by its end-of-text token, if it has one."""

    complements = False

    def __init__(self, path: Path) -> None:
        """Raises: DataError if the file is missing, malformed, or the library is not there."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"tokenizer {path} cannot be read: {error.strerror}", _HINT) from error
        self._tokenizer = _parse_tokenizer(content, path)
        _make_whole(self._tokenizer)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise DataError(f"tokenizer {path} has an empty vocabulary", _HINT)
        # Numbers may have gaps, so the highest counts, not how many there are.
        self.vocabulary_size = max(vocabulary.values()) + 1
        if self.vocabulary_size > _MOST_NUMBERS:
            what = f"tokenizer {path} has the number {self.vocabulary_size - 1:,} for a token"
            raise DataError(what, _HINT)
        self._path = path
        self.digest = hashlib.sha256(f"{_PIECE_CHARACTERS}:".encode() + content).hexdigest()
        self.content = content
        self._separators = [text for text in _SEPARATORS if text in vocabulary][:1]
        self.separator: Sequence[int] = tuple(vocabulary[text] for text in self._separators)

    @property
    def separator_text(self) -> str | None:
        """How the token between documents is written."""
        return self._separators[0] if self._separators else None

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[str]:
        """Whole lines together. Raises: ValueError if the bytes are not UTF-8."""
        return _pieces(_characters(blocks))

    def encode(self, pieces: Sequence[str]) -> Iterator[Sequence[int]]:
        """In as many threads as the library takes. Raises: DataError for what has no token."""
        for encoding in self.encodings(pieces):
            yield encoding.ids

    def encodings(self, pieces: Sequence[str]) -> Sequence[Any]:
        """The same as the library has it: `ids`, and their `offsets` in the piece."""
        hint = "take one that has a token for whatever is unknown to it, or for every byte"
        with _library_errors(f"tokenizer {self._path} cannot encode the text", hint):
            found: Sequence[Any] = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Special tokens as they are written."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def load_tokenizer(tokenizer: str | Path) -> Tokenizer:
    """ "bytes", or a path to a tokenizer.json. Raises: DataError if it cannot be used."""
    return ByteTokenizer() if tokenizer == "bytes" else JsonTokenizer(Path(tokenizer))


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Of a whole text. Raises: ValueError for what it has no token for."""
    pieces = list(tokenizer.pieces([text.encode()]))
    return [token for tokens in tokenizer.encode(pieces) for token in tokens]


def byte_level_tokenizer() -> str:
    """The text of a tokenizer.json that gives the same numbers as `ByteTokenizer`: 256 tokens, no
    merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # As byte-level tokenizers write a byte: itself if it is a visible sign of Latin-1, else the
    # next one from U+0100 on.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    signs = [chr(byte if byte in visible else next(others)) for byte in range(256)]
    built = Tokenizer(models.BPE({sign: byte for byte, sign in enumerate(signs)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    return str(built.to_str(pretty=True)) + "\n"


def _parse_tokenizer(content: bytes, path: Path) -> Any:
    import tokenizers  # not before it is needed

    with _library_errors(f"{path} is not a tokenizer.json", _HINT):
        return tokenizers.Tokenizer.from_str(content.decode("utf-8"))


@contextmanager
def _library_errors(what: str, hint: str) -> Iterator[None]:
    """Raises: DataError for what the library raises: a bare Exception for whatever is wrong, and
    where it did not expect it a panic, which is no Exception and has no name to import."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {error}", hint) from error


def _make_whole(tokenizer: Any) -> None:
    """Takes off what the library keeps in the file for batches of somebody's training: it would
    leave out text beyond a length, fill short pieces up, or give other tokens every time."""
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
    """Cuts after the first newline once a piece is long enough, wherever the blocks ended."""
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
