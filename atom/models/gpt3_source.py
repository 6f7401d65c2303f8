"""The GPT-3 family as a model source, with the folder format of GPT-2.

GPT-2 of `transformers` does the same arithmetic with other parameter names, and stores the weights
of its linear layers transposed. Kernels and their order are equal, so logits are equal in every
bit. This module does not need `transformers`.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from atom.models.gpt3 import GPT3, GPT3Config, initial_value, parameter_shapes
from atom.models.huggingface_config import read_config
from atom.models.source import (
    Answer,
    Batch,
    InitialValue,
    ModelSource,
    Outside,
    Place,
    meta_tokens,
    refuse_difference,
)

SHRINK_LAYERS = 2
PREFIX = "transformer."
_TABLES = {
    "embedding.tokens": "wte",
    "embedding.positions": "wpe",
    "final_norm": "ln_f",
}
_IN_BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.projection": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.expand": "mlp.c_fc",
    "feed_forward.contract": "mlp.c_proj",
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_FIXED: Mapping[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_SHAPE = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")


class GPT3Source(ModelSource):
    """`ModelSource` of the GPT-3 family."""

    name = "gpt3"
    values_in_threads = True

    def __init__(self, config: GPT3Config) -> None:
        self.config = config
        self.vocabulary_size = config.vocabulary_size

    def build(self, dtype: torch.dtype) -> nn.Module:
        return GPT3(self.config, device="meta", dtype=dtype)

    def example_batch(self, sequences: int) -> Batch:
        tokens = meta_tokens(sequences, self.config.sequence_tokens)
        return self.text_batch({"tokens": tokens, "targets": tokens.clone()})

    def next_logits(self, model: nn.Module) -> Answer:
        assert isinstance(model, GPT3)
        return model.next_logits

    def initial_values(self, seed: int) -> InitialValue:
        return lambda name, shape: initial_value(self.config, name, shape, seed)

    def outside(self, dtype: torch.dtype) -> Outside:
        return gpt2_outside(self.config)

    def require_config(self, text: str) -> None:
        require_gpt2(self.config, read_config(text))

    def shrunk(self) -> ModelSource:
        layers = min(SHRINK_LAYERS, self.config.layers)
        return GPT3Source(dataclasses.replace(self.config, layers=layers))


def gpt2_outside(config: GPT3Config) -> Outside:
    """Return the folder format of `GPT2LMHeadModel`, with its config.json."""
    places = []
    for name, shape in parameter_shapes(config).items():
        owner, _, kind = name.rpartition(".")
        block = _BLOCK.fullmatch(owner)
        inner = f"h.{block[1]}.{_IN_BLOCK[block[2]]}" if block else _TABLES[owner]
        transposed = block is not None and len(shape) == 2
        outer_shape = shape[::-1] if transposed else shape
        places.append(Place(f"{PREFIX}{inner}.{kind}", name, outer_shape, transposed))
    return Outside(tuple(places), gpt2_config(config))


def gpt2_config(config: GPT3Config) -> dict[str, Any]:
    """Return the content of the config.json for `GPT2LMHeadModel`.

    `gelu_pytorch_tanh` makes it use PyTorch's kernel, as `FeedForward` does.
    """
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocabulary_size,
        "n_positions": config.sequence_tokens,
        "n_embd": config.model_dim,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": 4 * config.model_dim,
        "activation_function": "gelu_pytorch_tanh",
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
        **_FIXED,
    }


def require_gpt2(config: GPT3Config, found: Mapping[str, Any]) -> None:
    """Check that a folder's config.json describes the model of `config`.

    Raises:
        SourceError: the message names the first key that differs.
    """
    wanted = gpt2_config(config)
    for key in ("model_type", *_SHAPE, "activation_function", *_FIXED):
        refuse_difference(key, found.get(key), wanted[key])
