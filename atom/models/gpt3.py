"""The GPT-3 family in plain PyTorch (Brown et al. 2020, arXiv 2005.14165, table 2.1).

Pre-LayerNorm blocks, learned positions, the head tied to the token embedding. Every layer is
dense where the paper alternates dense and locally banded attention: same parameters, same shapes.

Initial values are seeded per parameter: they depend only on the seed and the parameter's name and
shape. So a peer can fill memory piece by piece, in threads, or again after a loss. Bits are equal
for one build of PyTorch on one kind of CPU; on another kind, vectorised sampling may differ in the
last bit.

The loss of many tokens is computed in chunks. The backward pass recomputes the logits of a chunk,
so only one chunk's logits are in memory at a time.

Shapes: B sequences, S tokens per sequence, D model_dim, H heads, V vocabulary_size, T = B·S tokens.
"""

import contextlib
import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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

GPT2_VOCABULARY = 50257
"""Vocabulary size of the tokenizer that GPT-2 and GPT-3 share."""

STANDARD_DEVIATION = 0.02
"""Standard deviation of initial weights and both embeddings in GPT-2 and GPT-3."""

IGNORED = -100
"""Target that does not count in the loss (PyTorch's default `ignore_index`)."""

MOST_LOSS_CHUNKS = 16
"""Maximum number of chunks: each adds a rounding to the head's gradient in the weights' dtype."""
LEAST_CHUNK_TOKENS = 256
"""Minimum number of tokens per chunk: a smaller matrix product does not fill a GPU."""

_RESIDUAL_ENDS = (".attention.projection.weight", ".feed_forward.contract.weight")


@dataclass(frozen=True)
class GPT3Config:
    """Dimensions of one model; `model_dim` is a multiple of `heads`."""

    layers: int
    heads: int
    model_dim: int
    sequence_tokens: int = 2048
    vocabulary_size: int = GPT2_VOCABULARY
    dropout: float = 0.0
    """Probability of dropping an activation (embedding, attention, both residual branches)."""

    @classmethod
    def build(cls, *, size: str | None = None, **numbers: Any) -> "GPT3Config":
        """Return the config of a named size, or of the given numbers.

        Args:
            size: key of `SIZES`, whose numbers are the defaults; None: no defaults.
            numbers: fields of the config; a field that is None is ignored.
        """
        given = {name: number for name, number in numbers.items() if number is not None}
        return dataclasses.replace(SIZES[size], **given) if size else cls(**given)


SIZES: dict[str, GPT3Config] = {
    "small": GPT3Config(layers=12, heads=12, model_dim=768),
    "medium": GPT3Config(layers=24, heads=16, model_dim=1024),
    "large": GPT3Config(layers=24, heads=16, model_dim=1536),
    # The paper prints 24 heads of 128 for XL, but 2048 / 128 is 16.
    "xl": GPT3Config(layers=24, heads=16, model_dim=2048),
    "2.7b": GPT3Config(layers=32, heads=32, model_dim=2560),
    "6.7b": GPT3Config(layers=32, heads=32, model_dim=4096),
    # The paper prints 5140, but 40 heads of 128 are 5120.
    "13b": GPT3Config(layers=40, heads=40, model_dim=5120),
    "175b": GPT3Config(layers=96, heads=96, model_dim=12288),
}
"""Configs of the paper's sizes, with its context of 2048 tokens."""


class Embedding(nn.Module):
    """Embedding of tokens and positions; the token table is also the head."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.model_dim)
        self.positions = nn.Embedding(config.sequence_tokens, config.model_dim)
        self.dropout = config.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens [B, S] → [B, S, D]."""
        # A slice instead of arange keeps devices and constants out of the traced graph.
        positions = self.positions.weight[: tokens.shape[1]]
        return _drop(self.tokens(tokens) + positions, self.dropout, self.training)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.model_dim, 3 * config.model_dim)
        self.projection = nn.Linear(config.model_dim, config.model_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attend: hidden [B, S, D] → [B, S, D]."""
        batch, length, width = hidden.shape
        heads = self.qkv(hidden).view(batch, length, 3 * self.heads, width // self.heads)
        query, key, value = heads.transpose(1, 2).split(self.heads, dim=1)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        return _drop(self.projection(joined), self.dropout, self.training)


class FeedForward(nn.Module):
    """Position-wise network, whose inner layer is four times as wide as the model."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config.model_dim, 4 * config.model_dim)
        self.contract = nn.Linear(4 * config.model_dim, config.model_dim)
        self.dropout = config.dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the network: hidden [B, S, D] → [B, S, D]."""
        inner = functional.gelu(self.expand(hidden), approximate="tanh")
        return _drop(self.contract(inner), self.dropout, self.training)


class Block(nn.Module):
    """Transformer layer, normalised before each branch."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.model_dim)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.model_dim)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the layer: hidden [B, S, D] → [B, S, D]."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class GPT3(nn.Module):
    """Decoder-only transformer that returns its own loss.

    A new model has PyTorch's default values; `initialise` fills in the seeded ones.
    """

    def __init__(
        self,
        config: GPT3Config,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        with torch.device(device) if device is not None else contextlib.nullcontext():
            self.embedding = Embedding(config)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.final_norm = nn.LayerNorm(config.model_dim)
        if dtype is not None:
            self.to(dtype)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token, a scalar in fp32.

        Args:
            tokens: int64 [B, S] with S ≤ sequence_tokens.
            targets: int64 [B, S], the next token of each; IGNORED ones do not count.
        """
        chunks = loss_chunks(self.config.model_dim, self.config.vocabulary_size, tokens.numel())
        if chunks == 1:
            logits = self.logits(tokens).float()
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        hidden, targets = self._hidden(tokens).flatten(0, 1), targets.flatten()
        sums = [
            checkpoint(self._loss_sum, *chunk, use_reentrant=False)
            for chunk in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True)
        ]
        return torch.stack(sums).sum() / (targets != IGNORED).sum()

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token: int64 [B, S] → [B, S, V] in the weights' dtype."""
        return self._head(self._hidden(tokens))

    def next_logits(self, tokens: Tensor, last: Tensor) -> Tensor:
        """Return the logits of one next token, as an `atom.models.source.Answer` does."""
        return self._head(self._hidden(tokens).index_select(1, last)).flatten(0, 1)

    def _hidden(self, tokens: Tensor) -> Tensor:
        """Compute the head's input: tokens [B, S] → [B, S, D]."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        normalised: Tensor = self.final_norm(hidden)
        return normalised

    def _head(self, hidden: Tensor) -> Tensor:
        """Compute logits: hidden [.., D] → [.., V]."""
        return functional.linear(hidden, self.embedding.tokens.weight)

    def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Sum the loss of a chunk: hidden [T, D], targets [T] → a scalar in fp32."""
        return functional.cross_entropy(self._head(hidden).float(), targets, reduction="sum")


def loss_chunks(model_dim: int, vocabulary_size: int, tokens: int) -> int:
    """Return the number of chunks for the loss of `tokens` tokens: a power of two, 1 for no chunks.

    Chunks cost one more product with the head per token. They save memory, because only one chunk's
    logits exist at a time: with their log-softmax and its gradient in fp32, 12·V bytes per token.
    But each chunk also creates a gradient of the head, [V, D], which is added to the others. So
    chunks below about D/4 tokens save no more memory, and fewer tokens than that are not cut. A
    small vocabulary is not cut either: its logits are no wider than a block's inner activations.
    """
    if vocabulary_size <= 4 * model_dim:
        return 1
    most = math.ceil(tokens / max(LEAST_CHUNK_TOKENS, model_dim // 4))
    return min(MOST_LOSS_CHUNKS, 1 << (most - 1).bit_length())


def parameter_shapes(config: GPT3Config) -> dict[str, tuple[int, ...]]:
    """Return name → shape of all parameters, in order of first use, without allocating them."""
    model = GPT3(config, device="meta")
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def initial_value(config: GPT3Config, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial value of one parameter, a new float32 CPU tensor of `shape`.

    Biases are 0, norms 1, other parameters N(0, 0.02²). The two projections that end in the
    residual stream are scaled by 1/√(2·layers), so that its variance does not grow with depth
    (GPT-2, section 2.3).

    Args:
        config: sizes of the model.
        name: name of the parameter; it selects the distribution and the random numbers.
        shape: shape of the parameter.
        seed: seed of the run.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    deviation = STANDARD_DEVIATION
    if name.endswith(_RESIDUAL_ENDS):
        deviation /= math.sqrt(2 * config.layers)
    generator = generator_for(name, seed)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


@torch.no_grad()
def initialise(model: GPT3, seed: int) -> None:
    """Set every parameter to its seeded value, in the model's dtype and on its device."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(model.config, name, tuple(parameter.shape), seed))


def generator_for(name: str, seed: int) -> torch.Generator:
    """Return the random numbers of one parameter, given the seed of the run."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def _drop(hidden: Tensor, probability: float, training: bool) -> Tensor:
    # Without dropout, the traced graph has no such node and no random number is drawn.
    return functional.dropout(hidden, probability, training) if probability > 0 else hidden


# ---- the family as a model source, with the folder format of GPT-2
#
# GPT-2 of `transformers` does the same arithmetic with other parameter names, and stores the
# weights of its linear layers transposed. Kernels and their order are equal, so logits are equal in
# every bit. `transformers` is not needed here.

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
        """Return the folder format of `GPT2LMHeadModel`, with its config.json."""
        places = []
        for name, shape in parameter_shapes(self.config).items():
            owner, _, kind = name.rpartition(".")
            block = _BLOCK.fullmatch(owner)
            inner = f"h.{block[1]}.{_IN_BLOCK[block[2]]}" if block else _TABLES[owner]
            transposed = block is not None and len(shape) == 2
            outer_shape = shape[::-1] if transposed else shape
            places.append(Place(f"{PREFIX}{inner}.{kind}", name, outer_shape, transposed))
        return Outside(tuple(places), _gpt2_config(self.config))

    def require_config(self, text: str) -> None:
        found, wanted = read_config(text), _gpt2_config(self.config)
        for key in ("model_type", *_SHAPE, "activation_function", *_FIXED):
            refuse_difference(key, found.get(key), wanted[key])

    def shrunk(self) -> ModelSource:
        layers = min(SHRINK_LAYERS, self.config.layers)
        return GPT3Source(dataclasses.replace(self.config, layers=layers))


def _gpt2_config(config: GPT3Config) -> dict[str, Any]:
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
