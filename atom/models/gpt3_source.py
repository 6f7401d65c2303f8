"""The GPT-3 family as a source of models."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atom.models.gpt2_form import gpt2_outside, require_gpt2
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.models.huggingface_config import read_config
from atom.models.outside import Outside
from atom.models.source import Batch, InitialValue, ModelSource

SHRINK_LAYERS = 2


@dataclass(frozen=True)
class GPT3Source:
    """See `atom.models.source.ModelSource`."""

    config: GPT3Config

    name = "gpt3"
    packages: tuple[tuple[str, str], ...] = ()
    values_in_threads = True

    @property
    def vocabulary_size(self) -> int:
        return self.config.vocabulary_size

    def build(self, dtype: torch.dtype) -> nn.Module:
        return GPT3(self.config, device="meta", dtype=dtype)

    def example_batch(self, sequences: int) -> Batch:
        shape = (sequences, self.config.sequence_tokens)
        tokens = torch.zeros(shape, dtype=torch.int64, device="meta")
        return self.text_batch(tokens, tokens.clone())

    def text_batch(self, tokens: Tensor, targets: Tensor) -> Batch:
        return {"tokens": tokens, "targets": targets}

    def initial_values(self, seed: int) -> InitialValue:
        return lambda name, shape: initial_value(self.config, name, shape, seed)

    def outside(self, dtype: torch.dtype) -> Outside:
        return gpt2_outside(self.config)

    def require_config(self, text: str) -> None:
        require_gpt2(self.config, read_config(text))

    def shrunk(self) -> ModelSource:
        layers = min(SHRINK_LAYERS, self.config.layers)
        return GPT3Source(dataclasses.replace(self.config, layers=layers))

    def inspect(self, seed: int) -> None:
        """Nothing to see: it is our own."""
