"""Tokenizers, which turn text into token numbers: raw bytes, or a `tokenizers` file."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from atom.base.errors import ConfigError
from atom.models.data import tokenizer_settings as declarations
from atom.models.data.tokenizer_settings import Settings, declared, token_text

_PIECE_CHARACTERS = 1 << 18
"""Minimum number of characters per encoded piece, which also ends at the end of a line.

The cuts affect the tokens next to them, so this number is part of a `JsonTokenizer`'s digest.
"""
_LINE_CHARACTERS = 1 << 23
"""Maximum length of a piece: a longer line is cut anywhere, so that memory stays bounded."""
_HINT = "name a tokenizer.json: [data] tokenizer, in the run file or in your peer file"
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""Known end-of-text tokens, in order of preference, for a folder that declares no other one."""


class Tokenizer(Protocol):
    """Interface that turns the bytes of documents into token numbers below `vocabulary_size`."""

    vocabulary_size: int
    """Number of tokens that the tokenizer can produce."""
    digest: str
    """sha256 hex digest of all data that decides the tokens."""
    content: bytes
    """Content of the tokenizer.json; empty if there is none."""
    packed: bytes
    """Content of the tokenizer.json and the settings of its folder; empty if there is none."""
    end: tuple[int, ...]
    """Tokens that end a document."""
    ends: tuple[int, ...]
    """Tokens of which each ends an answer: the first is the declared end-of-sequence token."""
    complements: bool
    """True if a token t that is not a target is encoded as ~t."""

    def border(self, before: Sequence[int] | None, piece: Any, tokens: Sequence[int]) -> list[int]:
        """Return the tokens to put before the first piece of a document.

        Args:
            before: last tokens of the preceding document; None: this is the first document.
            piece: the piece.
            tokens: its tokens.
        """

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
    content = packed = b""
    end: tuple[int, ...] = (10,)
    ends: tuple[int, ...] = ()
    """No token: the newline that separates documents also occurs inside them."""
    complements = False

    def border(self, before: Sequence[int] | None, piece: Any, tokens: Sequence[int]) -> list[int]:
        """Return a newline between two documents."""
        return [] if before is None else [*self.end]

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Return the blocks unchanged."""
        return iter(blocks)

    def encode(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Return the pieces unchanged, because bytes already are numbers below 256."""
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class JsonTokenizer:
    """Tokenizer of a tokenizer.json, with the settings that its folder declares."""

    complements = False

    def __init__(self, path: Path) -> None:
        """Load the file, and its settings from the same content or from the folder beside it.

        Raises:
            ConfigError: a file is missing, malformed or unusable.
        """
        try:
            packed = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"tokenizer {path} cannot be read: {error.strerror}", _HINT
            ) from error
        self.content, settings = declarations.unpack(packed, str(path))
        self.settings = declarations.read_settings(path.parent) if settings is None else settings
        self._tokenizer = _parse_tokenizer(self.content, path)
        _disable_batching(self._tokenizer)
        with _library_errors(f"{path.parent} declares tokens that cannot be added", _HINT):
            _add_declared(self._tokenizer, self.settings)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ConfigError(f"tokenizer {path} has an empty vocabulary", _HINT)
        # Token numbers may have gaps, so the size follows from the highest one.
        self.vocabulary_size = max(vocabulary.values()) + 1
        self.path, self._vocabulary = path, vocabulary
        self.packed = declarations.pack(self.content, self.settings)
        self.digest = hashlib.sha256(f"{_PIECE_CHARACTERS}:".encode() + self.packed).hexdigest()
        self._set_borders()

    def _set_borders(self) -> None:
        """Find the tokens that begin and end a document, and those that end an answer."""
        with _library_errors(f"tokenizer {self.path} cannot encode its tokens", _HINT):
            begin, end = _added_around(self._tokenizer)
        if declared(self.settings, "add_bos_token") is True:
            begin = begin or self.special("bos_token")
        # An end-of-sequence token that the chat template writes ends a turn. If the vocabulary has
        # a token for the end of a text besides, that one separates documents.
        eos = self.special("eos_token")
        written = "".join(declarations.templates(self.settings).values())
        known = [self._vocabulary[text] for text in _SEPARATORS if text in self._vocabulary]
        is_turn = any(text in written for text in ("eos_token", *map(self.token, eos)))
        if known and (not eos or (is_turn and eos[0] not in known)):
            end = end or (known[0],)
        self.begin = begin
        """Tokens that begin a document."""
        self.end = end or eos
        ends = [*eos, *declarations.answer_ends(self.settings), *self.end]
        self.ends = tuple(dict.fromkeys(each for each in ends if each < self.vocabulary_size))

    def special(self, key: str) -> tuple[int, ...]:
        """Return the token that the folder declares under a key such as "pad_token", if any."""
        text = declarations.special_tokens(self.settings).get(key)
        return (self._vocabulary[text],) if text in self._vocabulary else ()

    def token(self, number: int) -> str:
        """Return the text of one token of the vocabulary."""
        return str(self._tokenizer.id_to_token(number))

    def added_tokens(self) -> dict[str, tuple[int, bool]]:
        """Return text → (number, True if special) of tokens that are found before all others."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: (number, token.special) for number, token in added.items()}

    def border(self, before: Sequence[int] | None, piece: Any, tokens: Sequence[int]) -> list[int]:
        """Return the end of the document before and the begin of this one, unless written there."""
        ended = before is None or tuple(before[-len(self.end) :]) == self.end
        begun = tuple(tokens[: len(self.begin)]) == self.begin
        return [*(() if ended else self.end), *(() if begun else self.begin)]

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[str]:
        """Cut one document into groups of whole lines.

        Raises:
            ValueError: the document is not UTF-8.
        """
        return _pieces(codecs.iterdecode(blocks, "utf-8"))

    def encode(self, pieces: Sequence[str]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each piece, computed in the library's threads.

        Raises:
            ConfigError: the tokenizer has no token for some text.
        """
        for encoding in self.encodings(pieces):
            yield encoding.ids

    def encodings(self, pieces: Sequence[str]) -> Sequence[Any]:
        """Return the library's encodings, with `ids` and their `offsets` in the piece.

        Raises:
            ConfigError: the tokenizer has no token for some text.
        """
        hint = "use one that has a token for unknown characters, or for every byte"
        with _library_errors(f"tokenizer {self.path} cannot encode the text", hint):
            found: Sequence[Any] = self._tokenizer.encode_batch(pieces, add_special_tokens=False)
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens, special tokens included."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def load_tokenizer(tokenizer: str | Path) -> Tokenizer:
    """Load the tokenizer "bytes", or a tokenizer.json by its path.

    Raises:
        ConfigError: the file cannot be used.
    """
    return ByteTokenizer() if tokenizer == "bytes" else JsonTokenizer(Path(tokenizer))


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a whole text.

    Raises:
        ValueError: the tokenizer has no token for some of the text.
    """
    pieces = list(tokenizer.pieces([text.encode()]))
    return [token for tokens in tokenizer.encode(pieces) for token in tokens]


def borders(tokenizer: Tokenizer, answer_ends: Sequence[int]) -> str:
    """Return a line about the tokens that begin and end documents and answers."""
    if not isinstance(tokenizer, JsonTokenizer):
        return "documents end with a newline; answers have no end token"

    def named(tokens: Sequence[int]) -> str:
        return (
            " ".join(f"{tokenizer.token(each)} ({each})" for each in tokens) or "no special token"
        )

    between = "" if tokenizer.end else ", so nothing stands between documents"
    return (
        f"a document begins with {named(tokenizer.begin)} and ends with {named(tokenizer.end)}"
        f"{between}; an answer ends with {named(answer_ends[:1])}"
    )


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
    """Turn the library's errors into ConfigError(f"{what}: {error}", hint).

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
        raise ConfigError(f"{what}: {error}", hint) from error


def _disable_batching(tokenizer: Any) -> None:
    """Switch off truncation, padding and dropout of merges, which the file may ask for.

    They would lose text, add tokens, or give different tokens each time.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None


def _add_declared(tokenizer: Any, settings: Settings) -> None:
    """Add declared tokens that the tokenizer.json lacks, as `transformers` does."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = dict[str, Any]()
    for token in declarations.declared_tokens(settings):
        if (text := token_text(token)) is not None and text not in known:
            flags = {key: token[key] for key in _FLAGS if key in token} if text != token else {}
            missing.setdefault(text, AddedToken(text, **{"special": True, **flags}))
    tokenizer.add_tokens([*missing.values()])


def _added_around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that the tokenizer's post-processor puts before and after a text."""
    added = tokenizer.get_added_tokens_decoder().values()
    for token in sorted(added, key=lambda each: not each.special):
        encoding = tokenizer.encode(token.content)
        own = [at for at, special in enumerate(encoding.special_tokens_mask) if not special]
        if own:
            return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])
    return (), ()  # a post-processor that adds tokens has names for them


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
