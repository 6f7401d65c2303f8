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


def _gpt2(p: float) -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=TOKENS,
            resid_pdrop=p, embd_pdrop=p, attn_pdrop=p, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def _opt(p: float) -> nn.Module:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(
            **_SHAPE, ffn_dim=48, word_embed_proj_dim=WIDTH, dropout=p, attention_dropout=p
        )
    )


def _bert(p: float) -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(**_SHAPE, hidden_dropout_prob=p, attention_probs_dropout_prob=p)
    )


def _vit(p: float) -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            image_size=48, patch_size=4, hidden_dropout_prob=p, attention_probs_dropout_prob=p,
        )
    )  # fmt: skip


def _t5(p: float) -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
            dropout_rate=p, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
        )
    )  # fmt: skip


def _mixtral(p: float) -> nn.Module:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            **_GROUPED, num_local_experts=4, num_experts_per_tok=2, attention_dropout=p,
            output_router_logits=True,
        )
    )  # fmt: skip


def _qwen2_moe(p: float) -> nn.Module:
    config = transformers.Qwen2MoeConfig(
        **_GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24, attention_dropout=p,
    )  # fmt: skip
    config._experts_implementation = "batched_mm"
    return transformers.Qwen2MoeForCausalLM(config)


def _decoder(kind: str, **settings: object) -> Callable[[float], nn.Module]:
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForCausalLM")
    return lambda p: model(config(**_GROUPED, attention_dropout=p, **settings))


def _gpt_neox(p: float) -> nn.Module:
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**_SHAPE, hidden_dropout=p, attention_dropout=p)
    )


def _bloom(p: float) -> nn.Module:
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=4,
            hidden_dropout=p, attention_dropout=p,
        )
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[float], nn.Module], Callable[[int], Batch]]] = {
    "gpt2": (_gpt2, tokens),
    "llama": (_decoder("Llama"), tokens),
    "qwen2": (_decoder("Qwen2"), tokens),
    "mistral": (_decoder("Mistral", sliding_window=32), tokens),
    "opt": (_opt, tokens),
    "gpt_neox": (_gpt_neox, tokens),
    "bert": (_bert, masked_tokens),
    # Its GELU is an autograd.Function.
    "bloom": (_bloom, tokens),
    "vit": (_vit, images),
    "t5": (_t5, tokens),
    "mixtral": (_mixtral, tokens),
    "qwen2_moe": (_qwen2_moe, tokens),
    "gemma2": (_decoder("Gemma2", head_dim=8, sliding_window=32), tokens),
    "phi3": (_decoder("Phi3"), tokens),
    # Norms within attention: their gradients are sums over transposed memory.
    "qwen3": (_decoder("Qwen3", head_dim=8), tokens),
    "gpt_oss": (
        _decoder(
            "GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=32
        ),
        tokens,
    ),
    # While exported it would solve triangles by loops, in other bits.
    "qwen3_next": (
        _decoder(
            "Qwen3Next",
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
        ),
        tokens,
    ),
}

WITHOUT_CACHE = {"bert", "vit"}


def make(name: str, dropout: float) -> nn.Module:
    """Return a model with initial values that depend only on its name."""
    torch.manual_seed(len(name))
    model = MODELS[name][0](dropout)
    return Loss(model) if name in WITHOUT_CACHE else Loss(model, use_cache=False)


def batch(name: str, seed: int) -> Batch:
    return MODELS[name][1](seed)
