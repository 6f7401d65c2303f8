"""Models of the `transformers` library as they are, tiny, each behind a wrapper that returns the
loss. Sequences are long enough (128) for attention to have a choice of kernels."""

from collections.abc import Callable

import torch
import transformers
from torch import Tensor, nn
from traced_modules import Batch
from transformers.utils import logging

SEQUENCES, TOKENS, VOCABULARY, WIDTH = 2, 128, 64, 32

logging.set_verbosity_error()

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 2 * TOKENS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}


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


def _model(name: str, *dropouts: str, **settings: object) -> Callable[[float], nn.Module]:
    """Return the function that builds a model from the probability of its `dropouts`."""
    model = getattr(transformers, name)
    return lambda p: model(model.config_class(**settings, **dict.fromkeys(dropouts, p)))


def _decoder(name: str, **settings: object) -> Callable[[float], nn.Module]:
    return _model(f"{name}ForCausalLM", "attention_dropout", **_GROUPED, **settings)


def _qwen2_moe(p: float) -> nn.Module:
    model = _decoder("Qwen2Moe", **_EXPERTS, moe_intermediate_size=24)(p)
    model.config._experts_implementation = "batched_mm"
    return model


_HIDDEN = "hidden_dropout_prob", "attention_probs_dropout_prob"
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL = {"vocab_size": VOCABULARY, "eos_token_id": 2}
_GPT2 = {**_SMALL, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": TOKENS}
_T5 = {**_SMALL, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_GATED_DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
MODELS: dict[str, tuple[Callable[[float], nn.Module], Callable[[int], Batch]]] = {
    "gpt2": (
        _model(
            "GPT2LMHeadModel", "resid_pdrop", "embd_pdrop", "attn_pdrop", **_GPT2, bos_token_id=1
        ),
        tokens,
    ),
    "llama": (_decoder("Llama"), tokens),
    "gpt_neox": (
        _model("GPTNeoXForCausalLM", "hidden_dropout", "attention_dropout", **_SHAPE), tokens
    ),
    "bert": (_model("BertForMaskedLM", *_HIDDEN, **_SHAPE), masked_tokens),
    # Its GELU is an autograd.Function.
    "bloom": (
        _model(
            "BloomForCausalLM", "hidden_dropout", "attention_dropout",
            vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=4,
        ),
        tokens,
    ),
    "vit": (
        _model(
            "ViTForImageClassification", *_HIDDEN, hidden_size=WIDTH, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=48, image_size=48, patch_size=4,
        ),
        images,
    ),
    "t5": (
        _model(
            "T5ForConditionalGeneration", "dropout_rate", **_T5, decoder_start_token_id=0,
            pad_token_id=0,
        ),
        tokens,
    ),
    "mixtral": (_decoder("Mixtral", **_LOCAL, output_router_logits=True), tokens),
    "qwen2_moe": (_qwen2_moe, tokens),
    # Norms within attention: their gradients are sums over transposed memory.
    "qwen3": (_decoder("Qwen3", head_dim=8), tokens),
    "gpt_oss": (_decoder("GptOss", **_LOCAL, head_dim=8, sliding_window=32), tokens),
    # While exported it would solve triangles by loops, in other bits.
    "qwen3_next": (
        _decoder(
            "Qwen3Next", **_EXPERTS, **_GATED_DELTA, head_dim=8, moe_intermediate_size=16
        ),
        tokens,
    ),
}  # fmt: skip

WITHOUT_CACHE = {"bert", "vit"}


def make(name: str, dropout: float) -> nn.Module:
    """Return a model with initial values that depend only on its name."""
    torch.manual_seed(len(name))
    model = MODELS[name][0](dropout)
    return Loss(model) if name in WITHOUT_CACHE else Loss(model, use_cache=False)


def batch(name: str, seed: int) -> Batch:
    return MODELS[name][1](seed)
