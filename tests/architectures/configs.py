"""The causal language models of `transformers` that people train most: of each a config that is
tiny, and has what the architecture is known for."""

from typing import Any

TOKENS, WINDOW, VOCABULARY, WIDTH, HEAD = 32, 8, 256, 32, 8
Config = dict[str, Any]

_USUAL: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2 * TOKENS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED: Config = {**_USUAL, "num_key_value_heads": 2}
_EXPERTS: Config = {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}
_LOCAL: Config = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_HEADS: Config = {**_GROUPED, "head_dim": HEAD}
_WINDOWS: Config = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_LATENT: Config = {
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GPT: Config = {
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": TOKENS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def _rope(kind: str, **more: object) -> Config:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_LINEAR: Config = {**_GROUPED, **_rope("linear", factor=4.0)}
_DYNAMIC: Config = {**_GROUPED, **_rope("dynamic", factor=2.0)}
_NO_WINDOW: Config = {**_GROUPED, "sliding_window": None}
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=16)
_SCALED_YARN = _rope(
    "yarn", factor=4.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.1
)
_LLAMA3 = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
_LONGROPE = _rope(
    "longrope", factor=4.0, short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 3.0, 4.0],
    original_max_position_embeddings=16,
)  # fmt: skip

_STATE: Config = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
_SMALL_EXPERTS: Config = {"moe_intermediate_size": 16}
_GEMMA: Config = {**_HEADS, **_WINDOWS, "query_pre_attn_scalar": HEAD}
_GEMMA3N: Config = {
    **_HEADS,
    **_WINDOWS,
    "intermediate_size": [48, 48],
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "laurel_rank": 4,
    "activation_sparsity_pattern": [0.5, 0.0],
}
_FALCON_OF_ALIBI: Config = {
    "alibi": True,
    "bias": True,
    "parallel_attn": False,
    "multi_query": False,
}
_GATED_DELTA: Config = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_QWEN_NEXT: Config = {
    **_EXPERTS,
    **_SMALL_EXPERTS,
    **_GATED_DELTA,
    "head_dim": HEAD,
    "shared_expert_intermediate_size": 16,
}
_IMAGES: Config = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_PIXTRAL: Config = {**_IMAGES, "model_type": "pixtral", "head_dim": HEAD}
_MAMBA: Config = {
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
_GRANITE: Config = {
    "logits_scaling": 4.0,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
}

CONFIGS: dict[str, tuple[str, Config]] = {
    "llama": ("RoPE of Llama 3", {**_GROUPED, **_LLAMA3}),
    "llama, linear": ("linear RoPE, bias", {**_LINEAR, "attention_bias": True, "mlp_bias": True}),
    "llama, dynamic": ("dynamic RoPE, tied", {**_DYNAMIC, "tie_word_embeddings": True}),
    "llama4_text": (
        "experts in every other layer, chunked attention",
        {
            **_LOCAL,
            "head_dim": HEAD,
            "intermediate_size_mlp": 48,
            "attention_chunk_size": 16,
            "interleave_moe_layer_step": 2,
        },
    ),
    "mistral": ("sliding window", {**_GROUPED, "sliding_window": WINDOW}),
    "mistral, no window": ("`sliding_window` is null", _NO_WINDOW),
    "mistral3": (
        "with an encoder of images",
        {"text_config": {**_HEADS, "model_type": "mistral"}, "vision_config": _PIXTRAL},
    ),
    "ministral3": ("YaRN, attention scaled by position", {**_HEADS, **_SCALED_YARN}),
    "ministral": ("windows in some layers", {**_HEADS, **_WINDOWS}),
    "mixtral": ("experts and their balancing loss", {**_LOCAL, "output_router_logits": True}),
    "qwen2": ("bias of queries, keys and values; YaRN", {**_GROUPED, **_YARN}),
    "qwen2_moe": (
        "experts, one of them shared",
        {**_EXPERTS, **_SMALL_EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "qwen3": ("norms of queries and keys", _HEADS),
    "qwen3_moe": ("the same, and experts", {**_EXPERTS, **_SMALL_EXPERTS, "head_dim": HEAD}),
    "qwen3_next": ("gated delta rule beside attention, experts", _QWEN_NEXT),
    "qwen3_5_text": ("gated delta rule beside attention", {**_HEADS, **_GATED_DELTA}),
    "qwen3_5_moe_text": ("the same, and experts", _QWEN_NEXT),
    "qwen3_5": (
        "the same, with an encoder of images",
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": {**_HEADS, **_GATED_DELTA},
            "vision_config": {
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": WIDTH,
                "patch_size": 14,
                "num_position_embeddings": 16,
            },
        },
    ),
    "gemma": ("tied", _HEADS),
    "gemma2": ("tied, soft caps, windows in some layers", _GEMMA),
    "gemma3_text": ("tied, norms of queries and keys, windows", _GEMMA),
    "gemma3": (
        "the same, with an encoder of images",
        {
            "text_config": {**_GEMMA, "model_type": "gemma3_text"},
            "vision_config": _IMAGES,
            "mm_tokens_per_image": 1,
        },
    ),
    "gemma3n_text": ("embeddings of each layer", _GEMMA3N),
    "phi": ("parallel blocks, partial RoPE, bias", {**_USUAL, "partial_rotary_factor": 0.5}),
    "phi3": ("LongRoPE", {**_GROUPED, **_LONGROPE}),
    "phimoe": ("experts", {**_LOCAL, "router_jitter_noise": 0.0, "input_jitter_noise": 0.0}),
    "gpt2": ("tied, learned positions", _GPT),
    "gpt_bigcode": ("one head of keys and values", {**_GPT, "multi_query": True}),
    "gpt_neo": (
        "windows in every other layer",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": TOKENS,
            "window_size": WINDOW,
        },
    ),
    "gptj": ("parallel blocks, partial RoPE", {**_GPT, "rotary_dim": 4}),
    "codegen": ("the same, of one matrix", {**_GPT, "rotary_dim": 4}),
    "gpt_neox": ("parallel blocks, partial RoPE, bias; Pythia", _USUAL),
    "gpt_oss": (
        "sinks of attention, experts, windows, YaRN",
        {**_LOCAL, **_WINDOWS, **_YARN, "head_dim": HEAD},
    ),
    "opt": (
        "tied, learned positions, bias",
        {**_USUAL, "ffn_dim": 48, "word_embed_proj_dim": WIDTH, "dropout": 0.0},
    ),
    "bloom": (
        "tied, ALiBi",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
    ),
    "mpt": (
        "tied, ALiBi",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": TOKENS,
            "expansion_ratio": 2,
        },
    ),
    "falcon": ("parallel blocks, one head of keys and values", _USUAL),
    "falcon, ALiBi": ("ALiBi, bias", {**_USUAL, **_FALCON_OF_ALIBI}),
    "starcoder2": ("bias, sliding window", {**_GROUPED, "sliding_window": WINDOW}),
    "stablelm": ("partial RoPE, bias", {**_GROUPED, "use_qkv_bias": True}),
    "cohere": ("parallel blocks, scaled logits", {**_GROUPED, "use_qk_norm": True}),
    "cohere2": ("the same, windows in some layers", {**_HEADS, **_WINDOWS}),
    "olmo": ("norms without weights", _GROUPED),
    "olmo2": ("norms behind blocks, of queries and keys", _GROUPED),
    "olmo3": ("the same, windows in some layers", {**_GROUPED, **_WINDOWS}),
    "olmoe": ("experts, norms of queries and keys", _EXPERTS),
    "granite": ("scaled logits, residuals, attention", {**_GROUPED, **_GRANITE}),
    "granitemoehybrid": (
        "Granite 4: layers of state space and of attention, experts, one of them shared",
        {
            **_LOCAL,
            **_GRANITE,
            "layer_types": ["mamba", "attention"],
            **_MAMBA,
            "mamba_n_heads": 8,
            "shared_intermediate_size": 32,
        },
    ),
    "granitemoe": ("the same, and experts", {**_LOCAL, **_GRANITE}),
    "deepseek_v2": (
        "latent attention, experts",
        {**_USUAL, **_LATENT, "topk_method": "group_limited_greedy"},
    ),
    "deepseek_v3": ("latent attention, experts in groups", {**_USUAL, **_LATENT}),
    "smollm3": ("some layers without positions", {**_GROUPED, "no_rope_layers": [1, 0]}),
    "ernie4_5": ("RoPE of neighbours", _HEADS),
    "ernie4_5_moe": (
        "the same, and experts",
        {
            **_GROUPED,
            **_SMALL_EXPERTS,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "glm": ("partial RoPE", _HEADS),
    "glm4": ("the same, norms around blocks", _HEADS),
    "glm4_moe": ("the same, and experts", {**_HEADS, **_LATENT, "n_group": 1}),
    "exaone4": ("norms behind blocks, windows in some layers", {**_HEADS, **_WINDOWS}),
    "internlm3": ("in transformers it is Llama", _HEADS),
    "nemotron_h": (
        "layers of state space, of attention, of experts",
        {
            **_HEADS,
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": HEAD,
            "n_groups": 2,
            "ssm_state_size": 8,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
    "nemotron": ("partial RoPE, squared ReLU; Minitron", _HEADS),
    "exaone_moe": (
        "the same, and experts",
        {
            **_HEADS,
            **_WINDOWS,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "apertus": ("xIELU, norms of queries and keys", _GROUPED),
    "minimax": (
        "lightning attention beside attention, experts",
        {
            **_LOCAL,
            "head_dim": HEAD,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 16,
        },
    ),
    "minimax_m2": ("experts, norms of queries and keys", {**_LOCAL, "head_dim": HEAD}),
    "seed_oss": ("bias", {**_HEADS, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "hunyuan_v1_dense": ("norms of queries and keys", _HEADS),
    "mamba": ("state space", {**_STATE, "state_size": 4}),
    "mamba2": (
        "state space",
        {
            **_STATE,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": HEAD,
            "n_groups": 2,
            "chunk_size": 16,
        },
    ),
    "falcon_mamba": ("state space", {**_STATE, "state_size": 4}),
    "falcon_h1": (
        "state space beside attention",
        {**_GROUPED, **_MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 4},
    ),
    "jamba": (
        "layers of state space, of attention, of experts",
        {
            **_EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "lfm2": (
        "short convolutions beside attention",
        {**_GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    ),
    "rwkv": ("recurrent", {**_STATE, "context_length": TOKENS}),
    "jetmoe": ("experts of attention", {**_LOCAL, "kv_channels": HEAD}),
    "t5": ("encoder and decoder", {}),
    "bart": ("encoder and decoder", {}),
    "bert": ("encoder", _USUAL),
}

_UNROLLED = (
    "each token is a step of its own: tracing takes minutes for some hundred tokens, so short "
    "sequences only"
)

_CARRIED = "text alone is trained; the encoder stays as it was"

REMARKS: dict[str, str] = {
    **dict.fromkeys(("gemma3", "qwen3_5", "mistral3"), _CARRIED),
    "gpt_oss": "sinks are no whole vector, which PyTorch's fused AdamW rounds in another way",
    "ernie4_5_moe": 'its router stays in 32 bits: with `precision = "float32"` only',
    "mamba": _UNROLLED,
    "falcon_mamba": _UNROLLED,
    "jamba": _UNROLLED,
    "rwkv": _UNROLLED,
}


def config_of(name: str) -> Config:
    """Return the config with its `model_type`: the name up to a comma."""
    return {"model_type": name.partition(",")[0], **CONFIGS[name][1]}
