"""Micro-batches of a run: windows of its texts, or samples of its module's own dataset.

A text may still be arriving from other peers. Its token file is then a mapped tensor that fills up
piece by piece (see `sampler`), and `Samples` says which pieces are needed, and when:

    for piece in samples.pieces_from(cursor): ...     # fetch them in this order
    samples = replace(samples, need=wait_until_there) # called before their windows are read
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from atom.base.errors import AtomError, ConfigError
from atom.models.data.account import Account, doubt_about
from atom.models.data.corpus import Amount
from atom.models.data.sampler import BLOCK_PIECES, Order, Permutation, Sampler
from atom.models.data.token_file import TokenFile
from atom.models.data.tokenizer import Tokenizer
from atom.models.gpt3 import IGNORED
from atom.models.module_source import own_code_errors
from atom.models.source import Batch

_ORDER = "atom-order-2"
"""Version of the order of samples, which is part of the data's digest."""


class Piece(NamedTuple):
    """Stretch of a token file with the run's piece size; the last of a file may be shorter."""

    file: int
    """Index in `Samples.files`."""
    number: int
    """Number of the piece in its file, from 0."""


Need = Callable[[Collection[Piece]], None]
"""Function that returns if these pieces are present. Raises: PiecesMissing; ConfigError."""


class PiecesMissing(AtomError):
    """Some needed pieces have not arrived yet; the caller should try again later."""


def all_present(pieces: Collection[Piece]) -> None:
    """Return at once, for texts that are completely on this machine (a `Need`)."""


Rows: TypeAlias = "Windows | DatasetRows"
"""Samples by number, from 0: windows of a text, or rows of a module's own dataset."""


@dataclass(frozen=True)
class Samples:
    """Training and validation data of a run.

    Peers with equal digests get equal samples at equal positions.
    """

    train: Mapping[str, Rows]
    """Name of a text → its samples to train on, in the sampler's order.

    A single text, or a module's dataset, has the empty name.
    """
    validation: Mapping[str, Rows]
    """Name of a text → its samples for validation, which are never trained on."""
    sampler: Sampler
    digest: str
    """sha256 hex digest of the data, its division into samples and their order."""
    amount: Amount
    tokens_per_sample: int = 1
    """Number of tokens per sample, for rates; 1 if the data is not text."""
    vocabulary_size: int = 0
    """Number of tokens of the tokenizer; 0 if the data is not text."""
    tokenizer_json: bytes = b""
    """Content of the tokenizer.json that made the tokens, with the settings of its folder; empty if
    there is none."""
    files: tuple[TokenFile, ...] = ()
    """Token files of the texts, those to train on first; empty if the data is not text."""
    need: Need = all_present
    """Function that is called with a batch's pieces before the batch is read."""
    to_batch: Callable[[Batch], Batch] = lambda batch: batch
    """Function that turns a batch of rows into the entries that the model's forward takes."""

    @property
    def accounts(self) -> dict[str, Account]:
        """Name of a text → its account; empty for texts that come from other peers."""
        names = dict.fromkeys((*self.train, *self.validation))
        found = ((name, file.account) for name, file in zip(names, self.files, strict=False))
        return {name: account for name, account in found if account.documents}

    def batch(self, positions: Sequence[int]) -> Batch:
        """Return the samples at `positions` of the run as one batch, in this order.

        Raises:
            ConfigError: a sample cannot be read.
            PiecesMissing: a sample has not arrived yet.
        """
        places = self._places(positions)
        self.need(_pieces_of(places))
        rows = [part.batch([row]) for part, row in places]
        return self.to_batch({name: torch.cat([row[name] for row in rows]) for name in rows[0]})

    def pieces(self, positions: Sequence[int]) -> set[Piece]:
        """Return the pieces that contain the samples at `positions` of the run."""
        return _pieces_of(self._places(positions))

    def pieces_from(self, cursor: int) -> Iterator[Piece]:
        """Yield each piece with text to train on once, in order of need from position `cursor`."""
        return (Piece(file, number) for file, number in self.sampler.pieces_from(cursor))

    def epochs(self, cursor: int) -> dict[str, float]:
        """Return name of a text → number of its epochs before position `cursor`, rounded."""
        shown = zip(self.train, self.sampler.epochs(cursor), strict=True)
        return {name: round(epochs, 3) for name, epochs in shown}

    def validation_batches(self, name: str, count: int, sequences: int) -> list[Batch]:
        """Return validation batches of one text, the same on every peer.

        The sequences are spread over the validation set, and repeat once it is used up. An entry
        `target_share` is set to the share of targets in these batches, so that their mean loss is
        the mean over their targets.

        Args:
            name: name of the text.
            count: number of batches.
            sequences: number of sequences per batch.

        Raises:
            ConfigError: a sample cannot be read.
            PiecesMissing: a sample has not arrived yet.
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
    """Stretch of a token file, cut into windows of `sequence_tokens` = S tokens.

    Windows do not overlap and do not cross the border of a piece. Window w of a piece (or of the
    stretch's part of it) holds its tokens [w·S, w·S + S). Its targets are the same tokens shifted
    by one, so consecutive windows share one token. Up to S tokens at a piece's end are no targets:
    at most 0.1 % for S = 2048, tokens of two bytes and pieces of 4 MiB.
    """

    tokens: Tensor
    """Tokens [count] of the whole file."""
    stretch: range
    """Indices of the tokens that are cut into windows."""
    piece_tokens: int
    """Number of tokens per piece; pieces are counted from the start of the file."""
    sequence_tokens: int
    file: int = 0
    """Index of the token file in `Samples.files`."""
    target_share: float | None = None
    """Mean fraction of tokens that are targets, over all texts to train on; None: all tokens."""
    separator: int | None = None
    """Token that ends a document; None: a sequence is treated as one document."""

    @property
    def piece_windows(self) -> int:
        """Number of windows in a piece that lies completely in the stretch."""
        return self._windows_in(self.piece_tokens)

    def __len__(self) -> int:
        pieces, rest = divmod(self.stretch.stop - self._boundary, self.piece_tokens)
        return self._before_boundary + pieces * self.piece_windows + self._windows_in(rest)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the windows `rows` as one batch.

        Returns:
            `tokens` and `targets`, new int64 tensors [len(rows), S]. The target is IGNORED if the
                file stores the token as its complement. With `self.target_share` there is an entry
                `target_share`, float32 [len(rows)]. With a separator there are `positions` within
                the document, int64 [len(rows), S].
        """
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
        """Return the pieces that contain the windows `rows`."""
        return {Piece(self.file, self._start(row) // self.piece_tokens) for row in rows}

    def _window(self, row: int) -> Tensor:
        start = self._start(row)
        return self.tokens[start : start + self.sequence_tokens + 1].to(torch.int64)

    def _start(self, row: int) -> int:
        """Return the index of the window's first token."""
        assert 0 <= row < len(self), f"window {row} is outside of [0, {len(self)})"
        if row < self._before_boundary:
            return self.stretch.start + row * self.sequence_tokens
        piece, window = divmod(row - self._before_boundary, self.piece_windows)
        return self._boundary + piece * self.piece_tokens + window * self.sequence_tokens

    @cached_property
    def _boundary(self) -> int:
        """Index of the first token of the first piece that begins in the stretch, else its end."""
        start = -(-self.stretch.start // self.piece_tokens) * self.piece_tokens
        return min(start, self.stretch.stop)

    @cached_property
    def _before_boundary(self) -> int:
        return self._windows_in(self._boundary - self.stretch.start)

    def _windows_in(self, tokens: int) -> int:
        return max(0, (tokens - 1) // self.sequence_tokens)


def _positions(tokens: Tensor, separator: int) -> Tensor:
    """Return each token's position in its document, int64 [B, S].

    A document begins after each separator, and at the start of the window.
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    ends = torch.where(tokens == separator, places + 1, 0)
    return places - functional.pad(ends, (1, -1)).cummax(dim=1).values


@dataclass(frozen=True)
class Text:
    """One text of a run, as tokens."""

    file: TokenFile
    name: str = ""
    """Name of the text; empty if the run has only one."""
    weight: int = 1
    """Number of its sequences per cycle; 0: the whole text is for validation."""
    target_share: float | None = None
    """Fraction of its tokens that are targets; None: in all texts of the run all tokens are."""


@dataclass(frozen=True)
class Cut:
    """Settings by which token files are cut into samples."""

    validation_fraction: float
    """Fraction of each text to train on that is held back at its end for validation."""
    sequence_tokens: int
    piece_bytes: int
    separator: int | None = None
    """Token that ends a document; None: batches have no positions within documents."""


def token_samples(texts: Sequence[Text], tokenizer: Tokenizer, cut: Cut, seed: int) -> Samples:
    """Return the samples of a run's texts.

    Args:
        texts: the texts as tokens, those to train on before those with weight 0.
        tokenizer: the tokenizer that made the tokens.
        cut: settings by which the token files are cut into samples.
        seed: seed of the order of the samples.

    Raises:
        ConfigError: a text has too few tokens, or a sequence is longer than a piece.
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
            if text.weight and text.file.account.documents:
                both = text.file.tokens[:end], text.file.tokens[end:]
                text.file.account.doubt = doubt_about(*both)
    orders = (Order(len(part), part.piece_windows, seed) for part in train.values())
    weights = tuple(text.weight for text in texts if text.weight)
    return Samples(
        train,
        validation,
        Sampler(tuple(orders), weights, seed),
        digest=_digest(texts, tokenizer, cut),
        amount=Amount(
            sum(len(part.stretch) for part in train.values()),
            sum(map(len, train.values())),
            sum(len(part.stretch) for part in validation.values()),
        ),
        tokens_per_sample=cut.sequence_tokens,
        vocabulary_size=tokenizer.vocabulary_size,
        tokenizer_json=tokenizer.packed,
        files=tuple(text.file for text in texts),
    )


def _mean_share(texts: Sequence[Text]) -> float | None:
    """Return the mean share of targets over all texts to train on; None: all tokens are targets.

    One share for all texts makes a target of any text weigh the same.
    """
    shares = [(text.weight, text.target_share) for text in texts]
    if any(share is None for _, share in shares):
        return None
    total = sum(weight for weight, _ in shares)
    return sum(weight * share for weight, share in shares if share is not None) / total


def _held_back(text: Text, cut: Cut) -> int:
    """Return the number of tokens at the file's end that are held back for validation."""
    return int(len(text.file.tokens) * (cut.validation_fraction if text.weight else 1))


def _windows(
    text: Text, cut: Cut, name: str, stretch: range, number: int, share: float | None
) -> Windows:
    """Return a stretch of a text as windows; errors call it the `name` text."""
    tokens, sequence_tokens = text.file.tokens, cut.sequence_tokens
    piece_tokens = cut.piece_bytes // tokens.element_size()
    if sequence_tokens >= piece_tokens:
        raise ConfigError(
            f"a sequence of {sequence_tokens} tokens and its last target are longer than a piece "
            f"of the token file, which holds {piece_tokens}",
            f"make sequences shorter ([model] sequence_tokens): {piece_tokens - 1} at most",
        )
    windows = Windows(tokens, stretch, piece_tokens, sequence_tokens, number, share, cut.separator)
    if not len(windows):
        raise ConfigError(
            f"the {name} text{text.name and f' of {text.name}'} has {len(stretch)} tokens, "
            f"fewer than one sequence of {sequence_tokens} and its last target",
            "add text ([data]), or make sequences shorter ([model] sequence_tokens)",
        )
    return windows


def _digest(texts: Sequence[Text], tokenizer: Tokenizer, cut: Cut) -> str:
    fields = [_ORDER, cut.piece_bytes, BLOCK_PIECES, cut.sequence_tokens, tokenizer.vocabulary_size]
    for text in texts:
        held_back = _held_back(text, cut)
        fields += [text.name, text.weight, text.file.digest, len(text.file.tokens), held_back]
    return hashlib.sha256(":".join(map(str, fields)).encode()).hexdigest()


@dataclass(frozen=True)
class DatasetRows:
    """Stretch of the dataset that the run's own code brings."""

    dataset: Any
    """Dataset of user code: `dataset[index]` → dict of tensors."""
    like: Mapping[str, Tensor]
    """Example batch, whose entries have a sample's names, shapes and dtypes after dimension 0."""
    indices: range
    """Indices of the dataset that belong to the stretch."""

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the samples `rows` as one batch.

        Raises:
            ConfigError: a sample cannot be read, or does not match the example.
        """
        samples = [self.sample(self.indices[row]) for row in rows]
        return {name: torch.stack([sample[name] for sample in samples]) for name in self.like}

    def pieces(self, rows: Sequence[int]) -> set[Piece]:
        """Return the empty set: a dataset is completely on this machine and has no pieces."""
        return set()

    def sample(self, index: int) -> Mapping[str, Tensor]:
        """Return one sample of the dataset, checked against the example batch.

        Raises:
            ConfigError: the dataset raises, or the sample does not match the example.
        """
        hint = "the dataset's __getitem__ raised it"
        with own_code_errors(f"sample {index} of the dataset cannot be read", hint):
            sample = self.dataset[index]
        if not isinstance(sample, Mapping) or set(sample) != set(self.like):
            raise ConfigError(
                f"sample {index} of the dataset is not a dict of {', '.join(self.like)}",
                "return the entries of the example batch, without the first dimension",
            )
        for name, like in self.like.items():
            value = sample[name]
            fits = isinstance(value, Tensor) and value.shape == like.shape[1:]
            if not fits or value.dtype != like.dtype:
                shape = list(like.shape[1:])
                raise ConfigError(
                    f"sample {index} of the dataset: {name} is not {like.dtype} {shape}",
                    "return entries shaped as in the example batch, without the first dimension",
                )
        return sample


def own_samples(
    dataset: Any, like: Mapping[str, Tensor], validation_fraction: float, seed: int
) -> Samples:
    """Return the samples of a dataset that the run's own code brings.

    Args:
        dataset: object with `len(dataset)`, and `dataset[index]` → dict of tensors.
        like: example batch, which every sample must match.
        validation_fraction: fraction of the samples, at the end, to hold back for validation.
        seed: seed of the order of the samples.

    Raises:
        ConfigError: the first sample does not match `like`, or `validation_fraction` is above 0 but
            holds back no sample.
    """
    count = len(dataset)
    held_out = int(count * validation_fraction)
    if validation_fraction and not held_out:
        raise ConfigError(
            f"validation_fraction {validation_fraction} of {count} samples is none",
            "raise data.validation_fraction, or remove [validation]",
        )
    train = DatasetRows(dataset, like, range(count - held_out))
    train.sample(0)
    held_back = DatasetRows(dataset, like, range(count - held_out, count))
    shapes = sorted((n, str(v.dtype), tuple(v.shape[1:])) for n, v in like.items())
    return Samples(
        {"": train},
        {"": held_back} if held_out else {},
        Sampler((Order(len(train), len(train), seed),)),
        digest=hashlib.sha256(f"{count}:{held_out}:{shapes}".encode()).hexdigest(),
        amount=Amount(0, count - held_out, held_out),
    )
