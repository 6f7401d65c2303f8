"""Models whose costs can also be measured with autograd's hooks and torch's own counter."""

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from transformers_zoo import Loss

from atom.models.gpt3 import GPT3, GPT3Config

Batch = dict[str, Tensor]
VOCABULARY, LENGTH = 128, 32


def _sizes() -> dict[str, int]:
    return {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": LENGTH,
    }


def gpt3(dropout: float = 0.0) -> nn.Module:
    config = GPT3Config(3, 4, 64, LENGTH, VOCABULARY, dropout)
    return GPT3(config)


def llama(attention: str = "sdpa") -> nn.Module:
    config = transformers.LlamaConfig(
        **_sizes(), use_cache=False, num_key_value_heads=2, attn_implementation=attention
    )
    return Loss(transformers.LlamaForCausalLM(config))


def bert(attention: str = "sdpa") -> nn.Module:
    config = transformers.BertConfig(**_sizes(), attn_implementation=attention)
    return Loss(transformers.BertForMaskedLM(config))


def tokens(first: str, second: str) -> Batch:
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    return {first: ids, second: ids.clone()}


GPT3_NAMES = ("tokens", "targets")
HF_NAMES = ("input_ids", "labels")

MODELS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "gpt3 with dropout": (lambda: gpt3(0.1), tokens(*GPT3_NAMES)),
    "llama": (llama, tokens(*HF_NAMES)),
    "bert": (bert, tokens(*HF_NAMES)),
}
"""Name → constructor of a model, and a batch for it."""
