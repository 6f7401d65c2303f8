"""The training and validation set of a run: tokens cut into windows, as batches."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.models.data.corpus import Amount, Corpus, DataError, Progress, silent
from atom.models.data.sampler import Permutation, Sampler
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import load_tokenizer
from atom.models.source import Batch


@dataclass(frozen=True)
class Windows:
    """A run of tokens [count], cut into windows of `sequence_tokens` that do not overlap.

    Window w holds tokens [w·S, w·S + S); its targets are the same shifted by one, so consecutive
    windows share one token and every token but the first is a target once.
    """

    tokens: Tensor
    sequence_tokens: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.sequence_tokens)

    def batch(self, windows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(tokens, targets), each a new int64 [len(windows), S].

        Raises: ValueError for an empty list, IndexError for a window that is not there.
        """
        if not windows:
            raise ValueError("a batch needs at least one window")
        rows = torch.stack([self._row(window) for window in windows])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _row(self, window: int) -> Tensor:
        if not 0 <= window < len(self):
            raise IndexError(f"window {window} is outside of [0, {len(self)})")
        start = window * self.sequence_tokens
        return self.tokens[start : start + self.sequence_tokens + 1].to(torch.int64)


def tokens_and_targets(tokens: Tensor, targets: Tensor) -> Batch:
    return {"tokens": tokens, "targets": targets}


@dataclass(frozen=True)
class Dataset:
    """A tokenised corpus, split and cut: the `Samples` of a text."""

    train: Windows
    validation: Windows
    sampler: Sampler
    vocabulary_size: int
    """Tokens the tokenizer knows."""
    digest: str
    """sha256 hex of the tokens, where they are split and how long a window is."""
    tokenizer_digest: str
    """sha256 hex of the tokenizer."""

    to_batch: Callable[[Tensor, Tensor], Batch] = tokens_and_targets
    """Tokens and targets, each int64 [sequences, S], as the model takes them."""

    @property
    def amount(self) -> Amount:
        train, held_out = self.train, self.validation
        return Amount(len(train.tokens), len(train), len(held_out) and len(held_out.tokens))

    @property
    def tokens_per_sample(self) -> int:
        return self.train.sequence_tokens

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at `positions` of the run, in this order."""
        windows = [self.sampler.window_at(position) for position in positions]
        return self.to_batch(*self.train.batch(windows))

    def validation_batch(self, index: int, sequences: int) -> Batch:
        """The index-th validation batch of so many sequences, on every peer the same.

        Spread over the whole validation text; starts again when that is used up.
        Raises: ValueError if the run holds no validation text back.
        """
        count = len(self.validation)
        if not count:
            raise ValueError("this run holds no validation text back")
        order = Permutation.keyed(count, "validation")
        first = index * sequences
        windows = [order(i % count) for i in range(first, first + sequences)]
        return self.to_batch(*self.validation.batch(windows))


def open_dataset(
    corpus: Corpus,
    tokenizer: str | Path,
    *,
    validation_fraction: float,
    sequence_tokens: int,
    seed: int,
    cache_folder: Path,
    on_progress: Progress = silent,
) -> Dataset:
    """Tokenises the texts once, and maps the tokens.

    Raises: ValueError if there is no text, too little, or it cannot be tokenised; OSError if the
    cache folder cannot be written.
    """
    coder = load_tokenizer(tokenizer)
    file = cached_tokens(corpus, coder, cache_folder, on_progress)
    train, held_out = split_tokens(file.tokens, validation_fraction)
    windows = Windows(train, sequence_tokens)
    validation = Windows(held_out, sequence_tokens)
    _check_enough(windows, validation, validation_fraction)
    cut = f"{file.digest}:{len(train)}:{len(held_out)}:{sequence_tokens}:{coder.vocabulary_size}"
    return Dataset(
        train=windows,
        validation=validation,
        sampler=Sampler(len(windows), seed),
        vocabulary_size=coder.vocabulary_size,
        digest=hashlib.sha256(cut.encode()).hexdigest(),
        tokenizer_digest=coder.digest,
    )


def split_tokens(tokens: Tensor, validation_fraction: float) -> tuple[Tensor, Tensor]:
    """(training, validation): the last part of the tokens is never trained on. Views, no copies.

    Raises: ValueError unless 0 ≤ validation_fraction < 1.
    """
    if not 0.0 <= validation_fraction < 1.0:
        raise ValueError(f"validation_fraction {validation_fraction} is not in [0, 1)")
    held_out = int(len(tokens) * validation_fraction)
    return tokens[: len(tokens) - held_out], tokens[len(tokens) - held_out :]


def _check_enough(train: Windows, validation: Windows, validation_fraction: float) -> None:
    for name, part, wanted in (
        ("training", train, True),
        ("validation", validation, validation_fraction > 0),
    ):
        if wanted and not len(part):
            raise DataError(
                f"the {name} text has {len(part.tokens)} tokens, "
                f"fewer than one sequence of {part.sequence_tokens} and its target",
                "give it more text ([data]), or shorter sequences ([model] sequence_tokens)",
            )
