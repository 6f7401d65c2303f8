"""Where a model comes from, behind one face: a family of ours, a Hugging Face config, own code."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from atom.models.outside import Outside

Batch = dict[str, Tensor]
"""One micro-batch: what the model's forward takes by name, first dimension = sequences."""
InitialValue = Callable[[str, tuple[int, ...]], Tensor]
"""(parameter's first name, shape) → its first value: a float32 CPU tensor of that shape."""


class SourceError(ValueError):
    """A model that cannot be had: what is wrong, where, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelSource(Protocol):
    """Builds one run's model. Equal sources give equal models on every machine."""

    @property
    def name(self) -> str:
        """What people call it: "gpt3", "LlamaForCausalLM", "my.module:factory"."""

    @property
    def packages(self) -> tuple[tuple[str, str], ...]:
        """(package, version) of the libraries that decide the model, besides PyTorch."""

    @property
    def vocabulary_size(self) -> int | None:
        """Tokens it can embed; None: not known here."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        """The model with parameters of `dtype` on `meta` and buffers with their values.

        `forward(**batch)` returns the mean loss of the micro-batch. Raises: SourceError.
        """

    def example_batch(self, sequences: int) -> Batch:
        """Names, shapes and dtypes of a micro-batch, on `meta`. Raises: SourceError."""

    def text_batch(self, tokens: Tensor, targets: Tensor) -> Batch:
        """A micro-batch of text: both int64 [sequences, tokens], targets are the next tokens.

        Raises: SourceError for a model that does not train on text.
        """

    def initial_values(self, seed: int) -> InitialValue:
        """Round 0 under `seed`: the same values on every peer, whatever the count of threads.

        Raises (the call, or the values): SourceError.
        """

    @property
    def values_in_threads(self) -> bool:
        """May several threads ask for initial values at once?"""

    def outside(self, dtype: torch.dtype) -> Outside:
        """How the model lies in a folder for other programs. Raises: SourceError."""

    def require_config(self, text: str) -> None:
        """Whether a folder's config.json describes this model. Raises: SourceError naming what
        differs."""

    def shrunk(self) -> "ModelSource":
        """A smaller model of the same make, for a check against eager; itself if it has none."""

    def inspect(self, seed: int) -> None:
        """Looks at what only values show, on the model with those of `seed`. For small models.

        Raises: SourceError.
        """


def materialised(source: ModelSource, dtype: torch.dtype, seed: int) -> nn.Module:
    """The model with its first values, rounded to `dtype`, on the CPU. Raises: SourceError."""
    model = source.build(dtype)
    value_of = source.initial_values(seed)
    made: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters()):
        value = value_of(name, tuple(parameter.shape)).to(dtype)
        made[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = made[id(old)]
    return model
