"""What a run trains on, as micro-batches: windows of its texts, or samples of an own dataset.

A text may still be on its way. Its token file is a mapped tensor, which fills up piece by piece
(see `sampler`), and `Samples` says which pieces are needed and when:

    for piece in samples.pieces_from(cursor): ...     # fetch them in this order
    samples = replace(samples, need=wait_until_there) # called before windows of them are read
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from atom.models.data.corpus import Amount
from atom.models.data.sampler import BLOCK_PIECES, Order, Permutation, Sampler
from atom.models.data.token_file import TokenFile
from atom.models.data.tokenizer import Tokenizer
from atom.models.gpt3 import IGNORED
from atom.models.source import Batch, DataError, SourceError

_ORDER = "atom-order-2"
"""Whoever has another order of samples has another digest of the data."""


class Piece(NamedTuple):
    """A stretch of a token file, of the run's piece size; the last one may be shorter."""

    file: int
    """Which of `Samples.files`."""
    number: int
    """From 0, in the order of the file."""


Need = Callable[[Collection[Piece]], None]
"""Returns if these pieces are there. Raises: PiecesMissing; SourceError."""


class PiecesMissing(SourceError):
    """Some are still on their way: whoever asked does something else meanwhile, and asks again."""


def all_there(pieces: Collection[Piece]) -> None:
    """The text is on this machine as a whole."""


Rows: TypeAlias = "Windows | OwnRows"
"""Samples by number, from 0: of a text, or of anybody's dataset."""


@dataclass(frozen=True)
class Samples:
    """Peers with equal digests see equal samples at equal positions."""

    train: Mapping[str, Rows]
    """By text, in the sampler's order; what is not several texts has no name."""
    validation: Mapping[str, Rows]
    """By text: what is never trained on."""
    sampler: Sampler
    digest: str
    """sha256 hex of what peers must have in common."""
    amount: Amount
    tokens_per_sample: int = 1
    """What a sample counts as in rates: its tokens, or 1."""
    vocabulary_size: int = 0
    """Tokens that the tokenizer knows; 0: the samples are no text."""
    tokenizer_digest: str = ""
    """sha256 hex of the tokenizer."""
    tokenizer_json: bytes = b""
    """The tokenizer.json that made the tokens; empty: none did."""
    files: tuple[TokenFile, ...] = ()
    """Of the texts, the sampler's first; empty: the samples are no text."""
    need: Need = all_there
    """Called before a batch is read, with the pieces that it lies in."""
    to_batch: Callable[[Batch], Batch] = lambda batch: batch
    """A batch of rows as the model takes it."""

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at `positions` of the run, in this order. Raises: SourceError."""
        places = self._places(positions)
        self.need(_pieces_of(places))
        rows = [part.batch([row]) for part, row in places]
        return self.to_batch({name: torch.cat([row[name] for row in rows]) for name in rows[0]})

    def pieces(self, positions: Sequence[int]) -> set[Piece]:
        """What the samples at `positions` of the run lie in."""
        return _pieces_of(self._places(positions))

    def pieces_from(self, cursor: int) -> Iterator[Piece]:
        """Each piece with text to train on once, as positions from `cursor` on need them."""
        return (Piece(file, number) for file, number in self.sampler.pieces_from(cursor))

    def epochs(self, cursor: int) -> dict[str, float]:
        """How often each text was shown before the cursor."""
        shown = zip(self.train, self.sampler.epochs(cursor), strict=True)
        return {name: round(epochs, 3) for name, epochs in shown}

    def validation_batches(self, name: str, count: int, sequences: int) -> list[Batch]:
        """So many validation batches of a text, of so many sequences, on every peer the same.

        Spread over all that is held back; starts again when that is used up. Their mean loss is the
        mean of their targets', so `target_share` is that of these batches. Raises: SourceError.
        """
        part = self.validation[name]
        order = Permutation.keyed(len(part), "validation")
        rows = [order(at % len(part)) for at in range(count * sequences)]
        self.need(part.pieces(rows))
        whole = part.batch(rows)
        if isinstance(part, Windows) and part.target_share is not None:
            counts = whole["targets"] != IGNORED
            whole["target_share"].fill_(counts.float().mean() if counts.any() else 1.0)
        batches = zip(*(torch.split(value, sequences) for value in whole.values()), strict=True)
        return [self.to_batch(dict(zip(whole, batch, strict=True))) for batch in batches]

    def _places(self, positions: Sequence[int]) -> list[tuple[Rows, int]]:
        parts = tuple(self.train.values())
        return [(parts[text], row) for text, row in map(self.sampler.window_at, positions)]


def _pieces_of(places: Sequence[tuple[Rows, int]]) -> set[Piece]:
    return set().union(*(part.pieces([row]) for part, row in places))


@dataclass(frozen=True)
class Windows:
    """A stretch of a token file, cut into windows of `sequence_tokens`, S, that do not overlap and
    cross no piece.

    From a piece's start on, or the stretch's, window w holds tokens [w·S, w·S + S); its targets are
    the same shifted by one, so consecutive windows share one token. What is left at a piece's end,
    S tokens at most, is no target: with S = 2048 of two bytes 0.1 % at most.
    """

    tokens: Tensor
    """[count] of the whole file."""
    stretch: range
    """Places in it."""
    piece_tokens: int
    """So many are a piece of the file, from its start on."""
    sequence_tokens: int
    file: int = 0
    """Which of `Samples.files`."""
    target_share: float | None = None
    separator: int | None = None
    """The token that ends a document; None: documents are not told apart."""

    @property
    def piece_windows(self) -> int:
        """In a piece that lies in the stretch as a whole."""
        return self._windows_in(self.piece_tokens)

    def __len__(self) -> int:
        pieces, rest = divmod(self.stretch.stop - self._boundary, self.piece_tokens)
        return self._before_boundary + pieces * self.piece_windows + self._windows_in(rest)

    def batch(self, rows: Sequence[int]) -> Batch:
        """`tokens` and `targets`, each a new int64 [len(rows), S]. A token that the file has as its
        complement is no target. With `target_share`, float32 [len(rows)], if there is one, and with
        `positions` in the document, as `tokens`, if there is a separator."""
        windows = torch.stack([self._window(row) for row in rows])
        tokens, targets = windows[:, :-1], windows[:, 1:]
        batch = {
            "tokens": torch.where(tokens < 0, ~tokens, tokens),
            "targets": torch.where(targets < 0, IGNORED, targets),
        }
        if self.target_share is not None:
            batch["target_share"] = torch.full([len(rows)], self.target_share)
        if self.separator is not None:
            batch["positions"] = _positions(batch["tokens"], self.separator)
        return batch

    def pieces(self, rows: Sequence[int]) -> set[Piece]:
        return {Piece(self.file, self._start(row) // self.piece_tokens) for row in rows}

    def _window(self, row: int) -> Tensor:
        start = self._start(row)
        return self.tokens[start : start + self.sequence_tokens + 1].to(torch.int64)

    def _start(self, row: int) -> int:
        """The place of the window's first token."""
        assert 0 <= row < len(self), f"window {row} is outside of [0, {len(self)})"
        if row < self._before_boundary:
            return self.stretch.start + row * self.sequence_tokens
        piece, window = divmod(row - self._before_boundary, self.piece_windows)
        return self._boundary + piece * self.piece_tokens + window * self.sequence_tokens

    @cached_property
    def _boundary(self) -> int:
        """Where the first piece begins that does not begin before the stretch; or its end."""
        start = -(-self.stretch.start // self.piece_tokens) * self.piece_tokens
        return min(start, self.stretch.stop)

    @cached_property
    def _before_boundary(self) -> int:
        return self._windows_in(self._boundary - self.stretch.start)

    def _windows_in(self, tokens: int) -> int:
        return max(0, (tokens - 1) // self.sequence_tokens)


def _positions(tokens: Tensor, separator: int) -> Tensor:
    """Int64 [B, S]: a document begins behind each separator, and where the window does."""
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    ends = torch.where(tokens == separator, places + 1, 0)
    return places - functional.pad(ends, (1, -1)).cummax(dim=1).values


@dataclass(frozen=True)
class Text:
    """One of a run's, as tokens."""

    file: TokenFile
    name: str = ""
    """Empty: it is the only one."""
    weight: int = 1
    """Sequences of it in a cycle; 0: it is held back as a whole."""
    target_share: float | None = None
    """Of its tokens, those that are targets; None: all are, in all of the run's texts."""


@dataclass(frozen=True)
class Cut:
    """How token files become samples."""

    validation_fraction: float
    """So much of a file that is trained on is held back, at its end."""
    sequence_tokens: int
    piece_bytes: int
    separator: int | None = None
    """The token that ends a document, where sequences say at which position of theirs they are."""


def token_samples(texts: Sequence[Text], coder: Tokenizer, cut: Cut, seed: int) -> Samples:
    """Of tokens that `coder` made. What is trained on comes before what is held back as a whole.

    Raises: DataError if there are too few, or a sequence is longer than a piece.
    """
    train: dict[str, Windows] = {}
    validation: dict[str, Windows] = {}
    share = _mean_share(texts)
    for number, text in enumerate(texts):
        end = len(text.file.tokens) - _held_back(text, cut)
        if text.weight:
            train[text.name] = _windows(text, cut, "training", range(end), number, share)
        if not text.weight or cut.validation_fraction:
            held_back = range(end, len(text.file.tokens))
            validation[text.name] = _windows(text, cut, "validation", held_back, number, share)
    orders = (Order(len(part), part.piece_windows, seed) for part in train.values())
    weights = tuple(text.weight for text in texts if text.weight)
    return Samples(
        train,
        validation,
        Sampler(tuple(orders), weights, seed),
        digest=_digest(texts, coder, cut),
        amount=Amount(
            sum(len(part.stretch) for part in train.values()),
            sum(map(len, train.values())),
            sum(len(part.stretch) for part in validation.values()),
        ),
        tokens_per_sample=cut.sequence_tokens,
        vocabulary_size=coder.vocabulary_size,
        tokenizer_digest=coder.digest,
        tokenizer_json=coder.content,
        files=tuple(text.file for text in texts),
    )


def _mean_share(texts: Sequence[Text]) -> float | None:
    """Of all that is trained on: targets of one text weigh as those of another."""
    shares = [(text.weight, text.target_share) for text in texts]
    if any(share is None for _, share in shares):
        return None
    total = sum(weight for weight, _ in shares)
    return sum(weight * share for weight, share in shares if share is not None) / total


def _held_back(text: Text, cut: Cut) -> int:
    """Tokens at the file's end."""
    return int(len(text.file.tokens) * (cut.validation_fraction if text.weight else 1))


def _windows(
    text: Text, cut: Cut, name: str, stretch: range, number: int, share: float | None
) -> Windows:
    """Raises: DataError."""
    tokens, sequence_tokens = text.file.tokens, cut.sequence_tokens
    piece_tokens = cut.piece_bytes // tokens.element_size()
    if sequence_tokens >= piece_tokens:
        raise DataError(
            f"a sequence of {sequence_tokens} tokens and its target are more than a piece of "
            f"the token file holds, {piece_tokens}",
            f"make sequences shorter ([model] sequence_tokens): {piece_tokens - 1} at most",
        )
    windows = Windows(tokens, stretch, piece_tokens, sequence_tokens, number, share, cut.separator)
    if not len(windows):
        raise DataError(
            f"the {name} text{text.name and f' of {text.name}'} has {len(stretch)} tokens, "
            f"fewer than one sequence of {sequence_tokens} and its target",
            "give it more text ([data]), or shorter sequences ([model] sequence_tokens)",
        )
    return windows


def _digest(texts: Sequence[Text], coder: Tokenizer, cut: Cut) -> str:
    told = [_ORDER, cut.piece_bytes, BLOCK_PIECES, cut.sequence_tokens, coder.vocabulary_size]
    for text in texts:
        held_back = _held_back(text, cut)
        told += [text.name, text.weight, text.file.digest, len(text.file.tokens), held_back]
    return hashlib.sha256(":".join(map(str, told)).encode()).hexdigest()


@dataclass(frozen=True)
class OwnRows:
    """A stretch of anybody's dataset: `dataset[index]` → dict of tensors, shaped `like` an example
    batch without its first dimension."""

    dataset: Any
    like: Mapping[str, Tensor]
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, rows: Sequence[int]) -> Batch:
        samples = [self.sample(self.indices[row]) for row in rows]
        return {name: torch.stack([sample[name] for sample in samples]) for name in self.like}

    def pieces(self, rows: Sequence[int]) -> set[Piece]:
        return set()

    def sample(self, index: int) -> Mapping[str, Tensor]:
        """Raises: SourceError where it is of another make than the example, or none."""
        try:
            sample = self.dataset[index]
        # It is somebody's code: whatever it raises is to be told with the sample's number.
        except Exception as error:
            raise SourceError(
                f"sample {index} of the dataset cannot be had: {type(error).__name__}: {error}",
                "the dataset's __getitem__ raised it",
            ) from error
        if not isinstance(sample, Mapping) or set(sample) != set(self.like):
            raise SourceError(
                f"sample {index} of the dataset is no dict of {', '.join(self.like)}",
                "its entries are those of the example batch, without the first dimension",
            )
        for name, like in self.like.items():
            value = sample[name]
            fits = isinstance(value, Tensor) and value.shape == like.shape[1:]
            if not fits or value.dtype != like.dtype:
                shape = list(like.shape[1:])
                raise SourceError(
                    f"sample {index} of the dataset: {name} is not {like.dtype} {shape}",
                    "every sample has the shape of the example batch's entries",
                )
        return sample


def own_samples(
    dataset: Any, like: Mapping[str, Tensor], validation_fraction: float, seed: int
) -> Samples:
    """Of anybody's dataset, with `len(dataset)`. The last `validation_fraction` is held back.

    Raises: SourceError if the first sample is not `like` the example, or nothing is held back.
    """
    count = len(dataset)
    held_out = int(count * validation_fraction)
    if validation_fraction and not held_out:
        raise SourceError(
            f"validation_fraction {validation_fraction} of {count} samples is none",
            "raise it, or remove [validation]",
        )
    train = OwnRows(dataset, like, range(count - held_out))
    train.sample(0)
    held_back = OwnRows(dataset, like, range(count - held_out, count))
    shapes = sorted((n, str(v.dtype), tuple(v.shape[1:])) for n, v in like.items())
    return Samples(
        {"": train},
        {"": held_back} if held_out else {},
        Sampler((Order(len(train), len(train), seed),)),
        digest=hashlib.sha256(f"{count}:{held_out}:{shapes}".encode()).hexdigest(),
        amount=Amount(0, count - held_out, held_out),
    )
