"""What a run trains on, as micro-batches: the windows of its text (`dataset.py`), or the samples of
an own dataset."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from atom.models.data.corpus import Amount
from atom.models.data.sampler import Permutation, Sampler
from atom.models.source import Batch, SourceError


class Samples(Protocol):
    """Peers with equal digests see equal samples at equal positions."""

    @property
    def sampler(self) -> Sampler: ...
    @property
    def digest(self) -> str:
        """Of what peers must have in common."""

    @property
    def amount(self) -> Amount:
        """How much there is."""

    @property
    def tokens_per_sample(self) -> int:
        """What a sample counts as in rates: its tokens, or 1."""

    def batch(self, positions: Sequence[int]) -> Batch:
        """The samples at these positions of the run, in this order."""

    def validation_batch(self, index: int, sequences: int) -> Batch:
        """The index-th validation batch, the same on every peer.

        Raises: ValueError if the run holds nothing back.
        """


class OwnSamples:
    """The samples of anybody's dataset: `len(dataset)`, `dataset[index]` → dict of tensors.

    The last `validation_fraction` of them is held back.
    """

    tokens_per_sample = 1

    def __init__(
        self, dataset: Any, like: Mapping[str, Tensor], validation_fraction: float, seed: int
    ) -> None:
        """`like`: a batch whose names, dtypes and shapes (all but the first extent) the samples
        must have. Raises: SourceError if the first has not, or too few are left to train on.
        """
        self._dataset = dataset
        self._like = like
        count = len(dataset)
        self._held_out = int(count * validation_fraction)
        self._trained = count - self._held_out
        if validation_fraction and not self._held_out:
            raise SourceError(
                f"validation_fraction {validation_fraction} of {count} samples is none",
                "raise it, or remove [validation]",
            )
        self.sampler = Sampler(self._trained, seed)
        self._sample(0)
        shapes = sorted((n, str(v.dtype), tuple(v.shape[1:])) for n, v in like.items())
        told = f"{count}:{self._held_out}:{shapes}"
        self.digest = hashlib.sha256(told.encode()).hexdigest()

    @property
    def amount(self) -> Amount:
        return Amount(0, self._trained, self._held_out)

    def batch(self, positions: Sequence[int]) -> Batch:
        return self._collated([self.sampler.window_at(position) for position in positions])

    def validation_batch(self, index: int, sequences: int) -> Batch:
        if not self._held_out:
            raise ValueError("this run holds no samples back")
        order = Permutation.keyed(self._held_out, "validation")
        first = index * sequences
        places = range(first, first + sequences)
        return self._collated([self._trained + order(i % self._held_out) for i in places])

    def _collated(self, indices: Sequence[int]) -> Batch:
        rows = [self._sample(index) for index in indices]
        return {name: torch.stack([row[name] for row in rows]) for name in self._like}

    def _sample(self, index: int) -> Mapping[str, Tensor]:
        try:
            sample = self._dataset[index]
        # It is somebody's code: whatever it raises is to be told with the sample's number.
        except Exception as error:
            raise SourceError(
                f"sample {index} of the dataset cannot be had: {type(error).__name__}: {error}",
                "the dataset's __getitem__ raised it",
            ) from error
        if not isinstance(sample, Mapping) or set(sample) != set(self._like):
            raise SourceError(
                f"sample {index} of the dataset is no dict of {', '.join(self._like)}",
                "its entries are those of the example batch, without the first dimension",
            )
        for name, like in self._like.items():
            value = sample[name]
            fits = isinstance(value, Tensor) and value.shape == like.shape[1:]
            if not fits or value.dtype != like.dtype:
                raise SourceError(
                    f"sample {index} of the dataset: {name} is not {like.dtype} "
                    f"{list(like.shape[1:])}",
                    "every sample has the shape of the example batch's entries",
                )
        return sample
