"""A Hugging Face config as a source of models."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from atom.models import huggingface
from atom.models.first_values import FirstValues
from atom.models.huggingface_config import read_config
from atom.models.source import Batch, InitialValue, ModelSource, Outside, SourceError, materialised

SHRINK_LAYERS = 2


class HuggingFaceSource:
    """See `atom.models.source.ModelSource`; the content is a config that `read_config` passed."""

    def __init__(self, content: Mapping[str, Any], sequence_tokens: int) -> None:
        """Raises: SourceError if transformers is missing, or has no such causal model."""
        self._content = dict(content)
        self._config, model_class = huggingface.open_config(self._content)
        self._sequence_tokens = sequence_tokens
        self.name = model_class.__name__
        self.packages = (("transformers", huggingface.version()),)
        self._check_positions()

    @classmethod
    def of_text(cls, text: str, sequence_tokens: int) -> "HuggingFaceSource":
        """From a config.json's text. Raises: SourceError."""
        return cls(read_config(text), sequence_tokens)

    @property
    def vocabulary_size(self) -> int:
        return int(self._config.get_text_config().vocab_size)

    def build(self, dtype: torch.dtype) -> nn.Module:
        return huggingface.build_causal_lm(self._content, dtype)

    def example_batch(self, sequences: int) -> Batch:
        tokens = torch.zeros((sequences, self._sequence_tokens), dtype=torch.int64, device="meta")
        return self.text_batch(tokens, tokens)

    def text_batch(self, tokens: Tensor, targets: Tensor) -> Batch:
        """The model shifts labels itself: it is given the tokens twice. So of each sequence the
        last target, which only `targets` holds, is not learned; the loss is transformers' own.
        """
        return {"input_ids": tokens, "labels": tokens.clone()}

    values_in_threads = False
    """Modules initialise themselves from PyTorch's one state of random numbers."""

    def initial_values(self, seed: int) -> InitialValue:
        model = self.build(torch.float32)
        return FirstValues(model, huggingface.own_initialisation, seed)

    def outside(self, dtype: torch.dtype) -> Outside:
        return huggingface.causal_lm_outside(self._content, dtype)

    def require_config(self, text: str) -> None:
        huggingface.require_same_model(self._content, read_config(text))

    def shrunk(self) -> ModelSource:
        layers = getattr(self._config, "num_hidden_layers", SHRINK_LAYERS)
        if layers <= SHRINK_LAYERS:
            return self
        names = getattr(self._config, "attribute_map", {})
        small = {
            key: value[:SHRINK_LAYERS]
            if isinstance(value, list) and len(value) == layers
            else value
            for key, value in self._content.items()
        }
        small.pop("num_hidden_layers", None)
        small[names.get("num_hidden_layers", "num_hidden_layers")] = SHRINK_LAYERS
        try:
            return HuggingFaceSource(small, self._sequence_tokens)
        except SourceError:  # some keys count layers in ways of their own
            return self

    def inspect(self, seed: int) -> None:
        model = materialised(self, torch.float32, seed)
        huggingface.refuse_lookahead(model, self.vocabulary_size, self._sequence_tokens)

    def _check_positions(self) -> None:
        most = getattr(self._config.get_text_config(), "max_position_embeddings", None)
        if isinstance(most, int) and self._sequence_tokens > most:
            raise SourceError(
                f"sequences of {self._sequence_tokens} tokens, but the model has {most} positions",
                f"set [model] sequence_tokens to at most {most}",
            )
