"""What a run trains on, as micro-batches: windows of its text, or samples of an own dataset."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from atom.models.data.corpus import Amount, Corpus, Progress, silent
from atom.models.data.sampler import Permutation, Sampler
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import load_tokenizer
from atom.models.source import Batch, DataError, SourceError


class Rows(Protocol):
    """Samples by number, from 0."""

    def __len__(self) -> int: ...

    def batch(self, rows: Sequence[int]) -> Batch:
        """These, in this order. Raises: SourceError."""


@dataclass(frozen=True)
class Samples:
    """Peers with equal digests see equal samples at equal positions."""

    train: Rows
    validation: Rows
    """Held back: never trained on."""
    seed: int
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
    to_batch: Callable[[Batch], Batch] = lambda batch: batch
    """A batch of rows as the model takes it."""

    @property
    def sampler(self) -> Sampler:
        return Sampler(len(self.train), self.seed)

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at `positions` of the run, in this order. Raises: SourceError."""
        return self.to_batch(self.train.batch([self.sampler.window_at(at) for at in positions]))

    def validation_batch(self, index: int, sequences: int) -> Batch:
        """The index-th validation batch of so many sequences, on every peer the same.

        Spread over all that is held back; starts again when that is used up. Raises: ValueError
        if that is nothing; SourceError.
        """
        count = len(self.validation)
        if not count:
            raise ValueError("this run holds nothing back for validation")
        order, first = Permutation.keyed(count, "validation"), index * sequences
        rows = [order(at % count) for at in range(first, first + sequences)]
        return self.to_batch(self.validation.batch(rows))


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

    def batch(self, rows: Sequence[int]) -> Batch:
        """`tokens` and `targets`, each a new int64 [len(rows), S]."""
        windows = torch.stack([self._window(row) for row in rows])
        return {
            "tokens": windows[:, :-1].contiguous(),
            "targets": windows[:, 1:].contiguous(),
        }

    def _window(self, row: int) -> Tensor:
        assert 0 <= row < len(self), f"window {row} is outside of [0, {len(self)})"
        start = row * self.sequence_tokens
        return self.tokens[start : start + self.sequence_tokens + 1].to(torch.int64)


def text_samples(
    corpus: Corpus,
    tokenizer: str | Path,
    *,
    validation_fraction: float,
    sequence_tokens: int,
    seed: int,
    cache_folder: Path,
    on_progress: Progress = silent,
) -> Samples:
    """Tokenises the texts once, and maps the tokens. The last `validation_fraction` of them is held
    back.

    Raises: ValueError if there is no text, too little, or it cannot be tokenised; OSError if the
    cache folder cannot be written.
    """
    coder = load_tokenizer(tokenizer)
    file = cached_tokens(corpus, coder, cache_folder, on_progress)
    held_out = int(len(file.tokens) * validation_fraction)
    end = len(file.tokens) - held_out
    train = Windows(file.tokens[:end], sequence_tokens)
    validation = Windows(file.tokens[end:], sequence_tokens)
    for name, part in ("training", train), ("validation", validation):
        if not len(part) and (part is train or validation_fraction):
            raise DataError(
                f"the {name} text has {len(part.tokens)} tokens, "
                f"fewer than one sequence of {sequence_tokens} and its target",
                "give it more text ([data]), or shorter sequences ([model] sequence_tokens)",
            )
    cut = f"{file.digest}:{end}:{held_out}:{sequence_tokens}:{coder.vocabulary_size}"
    return Samples(
        train,
        validation,
        seed,
        digest=hashlib.sha256(cut.encode()).hexdigest(),
        amount=Amount(end, len(train), held_out if len(validation) else 0),
        tokens_per_sample=sequence_tokens,
        vocabulary_size=coder.vocabulary_size,
        tokenizer_digest=coder.digest,
        tokenizer_json=coder.content,
    )


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
    shapes = sorted((n, str(v.dtype), tuple(v.shape[1:])) for n, v in like.items())
    return Samples(
        train,
        OwnRows(dataset, like, range(count - held_out, count)),
        seed,
        digest=hashlib.sha256(f"{count}:{held_out}:{shapes}".encode()).hexdigest(),
        amount=Amount(0, count - held_out, held_out),
    )
