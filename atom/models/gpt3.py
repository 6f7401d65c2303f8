"""The GPT-3 family in plain PyTorch (Brown et al. 2020, arXiv 2005.14165, table 2.1).

Pre-LayerNorm blocks, learned positions, the head tied to the token embedding. Every layer is
dense where the paper alternates dense and locally banded attention: same parameters, same shapes.

First values are seeded one parameter at a time: they depend on the seed, the parameter's name and
its shape, never on which others are made or in which order, so a peer can fill memory piece by
piece, in threads, or again after a loss. Bits are the same for one build of PyTorch on one kind
of CPU; across kinds, vectorised sampling may differ in the last bit.

The loss of many tokens is computed in chunks of them. Backward computes a chunk's logits again, so
that no more than one chunk's are in memory at once.

Shapes: B sequences, S tokens per sequence, D model_dim, H heads, V vocabulary_size, T = B·S tokens.
"""

import contextlib
import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

GPT2_VOCABULARY = 50257
"""Tokens of the tokenizer that GPT-2 and GPT-3 share."""

STANDARD_DEVIATION = 0.02
"""GPT-2's and GPT-3's, for weights and both embeddings."""

IGNORED = -100
"""A target that does not count, PyTorch's own."""

MOST_LOSS_CHUNKS = 16
"""Each adds to the head's gradient, in the weights' precision."""
LEAST_CHUNK_TOKENS = 256
"""A matrix product of fewer does not fill a GPU."""

_RESIDUAL_ENDS = (".attention.projection.weight", ".feed_forward.contract.weight")


@dataclass(frozen=True)
class GPT3Config:
    """The numbers of one model; `model_dim` is a multiple of `heads`."""

    layers: int
    heads: int
    model_dim: int
    sequence_tokens: int = 2048
    vocabulary_size: int = GPT2_VOCABULARY
    dropout: float = 0.0
    """Probability of dropping an activation (embedding, attention, both residual branches)."""

    @classmethod
    def build(cls, *, size: str | None = None, **numbers: Any) -> "GPT3Config":
        """A named size, or the numbers, of which None is left out."""
        given = {name: number for name, number in numbers.items() if number is not None}
        return dataclasses.replace(SIZES[size], **given) if size else cls(**given)


SIZES: dict[str, GPT3Config] = {
    "small": GPT3Config(layers=12, heads=12, model_dim=768),
    "medium": GPT3Config(layers=24, heads=16, model_dim=1024),
    "large": GPT3Config(layers=24, heads=16, model_dim=1536),
    # The paper prints 24 heads of 128 for XL, which do not fill 2048; 16 do.
    "xl": GPT3Config(layers=24, heads=16, model_dim=2048),
    "2.7b": GPT3Config(layers=32, heads=32, model_dim=2560),
    "6.7b": GPT3Config(layers=32, heads=32, model_dim=4096),
    # The paper prints 5140, which is not 40 heads of 128; 5120 is.
    "13b": GPT3Config(layers=40, heads=40, model_dim=5120),
    "175b": GPT3Config(layers=96, heads=96, model_dim=12288),
}
"""The paper's sizes, with its context of 2048 tokens."""


class Embedding(nn.Module):
    """Tokens and positions. The token table is also the head."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.model_dim)
        self.positions = nn.Embedding(config.sequence_tokens, config.model_dim)
        self.dropout = config.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, S] → [B, S, D]."""
        # A slice, not arange: a traced graph then holds no device and no constant.
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
        """hidden [B, S, D] → [B, S, D]."""
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
    """The position-wise network: four times as wide inside."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config.model_dim, 4 * config.model_dim)
        self.contract = nn.Linear(4 * config.model_dim, config.model_dim)
        self.dropout = config.dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, S, D] → [B, S, D]."""
        inner = functional.gelu(self.expand(hidden), approximate="tanh")
        return _drop(self.contract(inner), self.dropout, self.training)


class Block(nn.Module):
    """One transformer layer, normalised before each branch."""

    def __init__(self, config: GPT3Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.model_dim)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.model_dim)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, S, D] → [B, S, D]."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class GPT3(nn.Module):
    """A decoder-only transformer that returns its own loss.

    Built with PyTorch's default values; `initialise` gives it the seeded ones.
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
        """Mean cross-entropy in nats per token, a scalar in fp32.

        tokens, targets: int64 [B, S], S ≤ sequence_tokens.
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
        """What comes after each token: tokens int64 [B, S] → [B, S, V] in the weights' dtype."""
        return self._head(self._hidden(tokens))

    def next_logits(self, tokens: Tensor, last: Tensor) -> Tensor:
        """As `atom.models.source.Answer`."""
        return self._head(self._hidden(tokens).index_select(1, last)).flatten(0, 1)

    def _hidden(self, tokens: Tensor) -> Tensor:
        """tokens [B, S] → [B, S, D]."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        normalised: Tensor = self.final_norm(hidden)
        return normalised

    def _head(self, hidden: Tensor) -> Tensor:
        """hidden [.., D] → logits [.., V]."""
        return functional.linear(hidden, self.embedding.tokens.weight)

    def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden [T, D], targets [T] → a scalar in fp32."""
        return functional.cross_entropy(self._head(hidden).float(), targets, reduction="sum")


def loss_chunks(model_dim: int, vocabulary_size: int, tokens: int) -> int:
    """Into how many chunks the loss of `tokens` tokens is cut: a power of two, 1 for all at once.

    One more product with the head for every token, and one chunk's logits are there, not all of
    them: their logarithms, the gradient of these and their own, in fp32, 12·V bytes per token. A
    chunk also makes a head's gradient of its own, [V, D], to be added to the others'. So chunks of
    less than about D/4 tokens save nothing more, and tokens few beside D are left together; so are
    all where a token's logits are no wider than what a block makes of it.
    """
    if vocabulary_size <= 4 * model_dim:
        return 1
    most = math.ceil(tokens / max(LEAST_CHUNK_TOKENS, model_dim // 4))
    return min(MOST_LOSS_CHUNKS, 1 << (most - 1).bit_length())


def parameter_shapes(config: GPT3Config) -> dict[str, tuple[int, ...]]:
    """Name → shape of every parameter, in order of first use. Allocates nothing."""
    model = GPT3(config, device="meta")
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def initial_value(config: GPT3Config, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """The first value of one parameter: a new fp32 CPU tensor of `shape`.

    Biases 0, norms 1, all else N(0, 0.02²); the two projections that end in the residual stream
    are scaled by 1/√(2·layers), so that its variance does not grow with depth (GPT-2, section 2.3).
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    deviation = STANDARD_DEVIATION
    if name.endswith(_RESIDUAL_ENDS):
        deviation /= math.sqrt(2 * config.layers)
    generator = torch.Generator().manual_seed(_generator_seed(name, seed))
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


@torch.no_grad()
def initialise(model: GPT3, seed: int) -> None:
    """Gives every parameter its seeded value, rounded to the model's dtype, on its device."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(model.config, name, tuple(parameter.shape), seed))


def _generator_seed(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _drop(hidden: Tensor, probability: float, training: bool) -> Tensor:
    # Without dropout there is no node in a traced graph, and no random number is drawn.
    return functional.dropout(hidden, probability, training) if probability > 0 else hidden
