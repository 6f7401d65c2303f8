"""Models of the `transformers` library as they are, tiny, each behind a wrapper that returns the
loss. Sequences are long enough (128) for attention to have a choice of kernels."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from traced_modules import Batch
from transformers.utils import logging

from tests.architectures.configs import config_of

SEQUENCES, TOKENS, VOCABULARY = 2, 128, 64
_DROPOUTS = (
    "attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "embd_pdrop",
    "hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "dropout_rate",
)  # fmt: skip

logging.set_verbosity_error()


class Loss(nn.Module):
    """Wrapper around a model of the library that returns its loss."""

    def __init__(self, model: nn.Module, **settings: object) -> None:
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, **batch: Tensor) -> Tensor:
        return self.model(**batch, **self.settings).loss


def tokens(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (SEQUENCES, TOKENS)
    return {
        "input_ids": torch.randint(3, VOCABULARY, shape, generator=generator),
        "labels": torch.randint(3, VOCABULARY, shape, generator=generator),
    }


def masked_tokens(seed: int) -> Batch:
    """Return a batch with every seventh token as target; the second sequence ends in padding."""
    batch = tokens(seed)
    batch["labels"][:, torch.arange(TOKENS) % 7 != 0] = -100
    mask = torch.ones(SEQUENCES, TOKENS, dtype=torch.int64)
    mask[1, -20 - seed :] = 0
    return {**batch, "attention_mask": mask}


def images(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "pixel_values": torch.randn(SEQUENCES, 3, 48, 48, generator=generator),
        "labels": torch.randint(2, (SEQUENCES,), generator=generator),
    }


MODELS: dict[str, Callable[[int], Batch]] = {
    **dict.fromkeys(("gpt2", "llama", "gpt_neox"), tokens),
    "bert": masked_tokens,
    "bloom": tokens,  # its GELU is an autograd.Function
    "vit": images,
    **dict.fromkeys(("t5", "mixtral", "qwen2_moe"), tokens),
    "qwen3": tokens,  # norms within attention: their gradients are sums over transposed memory
    "gpt_oss": tokens,
    "qwen3_next": tokens,  # exported it would solve triangles by loops, in other bits
}
_OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("AutoModelForMaskedLM", {}),
    "vit": ("AutoModelForImageClassification", {"image_size": 48, "patch_size": 4}),
    "t5": (
        "AutoModelForSeq2SeqLM",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "decoder_start_token_id": 0},
    ),
}
"""Class and settings of models that are not causal language models."""


def make(name: str, dropout: float) -> nn.Module:
    """Return a model with initial values that depend only on its name."""
    torch.manual_seed(len(name))
    kind, more = _OTHER.get(name, ("AutoModelForCausalLM", {}))
    of = {**config_of("bert" if name == "vit" else name), **more, "model_type": name}
    of |= {"vocab_size": VOCABULARY, "max_position_embeddings": 2 * TOKENS}
    config = transformers.AutoConfig.for_model(**of)
    for key in _DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, dropout)
    model = getattr(transformers, kind).from_config(config)
    if name == "qwen2_moe":
        model.config._experts_implementation = "batched_mm"
    return Loss(model) if name in ("bert", "vit") else Loss(model, use_cache=False)


def batch(name: str, seed: int) -> Batch:
    return MODELS[name](seed)
