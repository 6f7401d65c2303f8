"""Small modules, each with a construct that is difficult to split."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, GPT3Config

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 2, 16, 16, 2, 32

Batch = dict[str, Tensor]


def legal_ends(graph: Graph) -> list[int]:
    """Return all legal positions except the last one, which every cut contains."""
    return [end for end in range(1, len(graph.calls)) if end not in graph.forbidden_cuts]


def tokens_and_targets(seed: int = 0, length: int = LENGTH) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, length)
    return {
        "tokens": torch.randint(0, VOCABULARY, shape, generator=generator),
        "targets": torch.randint(0, VOCABULARY, shape, generator=generator),
    }


def hidden_states(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {"hidden": torch.randn(BATCH, LENGTH, WIDTH, generator=generator)}


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        shape = (*hidden.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(hidden).split(WIDTH, dim=2))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout
        )
        return self.out(mixed.transpose(1, 2).reshape(hidden.shape))


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention(dropout)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        inner = F.gelu(self.up(self.norm2(hidden)), approximate="tanh")
        return hidden + self.drop(self.down(inner))


class TiedGPT(nn.Module):
    """GPT with tied embedding and head, positions from arange, and dropout."""

    def __init__(self, layers: int = 3, dropout: float = 0.0, length: int = LENGTH) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(length, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.drop(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            hidden = block(hidden)
        logits = F.linear(self.norm(hidden), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))


class LearnedBias(nn.Module):
    """Model with a learned mask for all blocks (as in T5), so its gradient sums over sub-models."""

    def __init__(self, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden, mask = self.tokens(tokens), self.bias.unsqueeze(0) * 0.5
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits = hidden @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Skips(nn.Module):
    """Model with values that live over several layers, and an input that most layers do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden: Tensor, weight: Tensor, keep: Tensor) -> Tensor:
        first, skips = hidden, []
        for layer in self.down:
            hidden = torch.tanh(layer(hidden))
            skips.append(hidden)
        for layer in self.up:
            hidden = torch.relu(layer(torch.cat([hidden, skips.pop()], dim=-1))) + first
        return (hidden.masked_fill(~keep, 0.0) * weight).pow(2).mean() + hidden.var(dim=1).sum()

    @staticmethod
    def batch(seed: int = 0) -> Batch:
        shape, generator = (BATCH, LENGTH, WIDTH), torch.Generator().manual_seed(seed)
        return {
            **hidden_states(seed),
            "weight": torch.rand(shape, generator=generator),
            "keep": torch.rand(shape, generator=generator) > 0.5,
        }


class Regions(nn.Module):
    """Model with no_grad and autocast regions, a detached branch and a tensor from a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            with torch.no_grad():
                scale = layer(hidden).abs().mean(dim=-1, keepdim=True)
                shift = scale - 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = layer(hidden) * scale
            hidden = hidden.float() + shift * torch.tensor([2.0, 0.5] * (WIDTH // 2))
        return (1 - hidden).square().mean() * 2.5


class InPlace(nn.Module):
    """Model that changes memory through a view after the layer that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        seen = torch.zeros_like(hidden)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden).relu_()
            if index < 2:
                seen[:, index] = hidden[:, index]
        left, right = hidden.chunk(2, dim=-1)
        return (left * right).sum() + seen.exp().mean()


class Buffers(nn.Module):
    """Model with constants, a frozen layer, an unused parameter, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, float("inf"), 0.1] + [1.5] * (WIDTH - 3)))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        self.bound = torch.tensor(0.75)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers[1].requires_grad_(False)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in (*self.layers, self.layers[0]):
            scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~self.mask, float("-inf"))
            hidden = layer(torch.softmax(scores, -1) @ hidden).clamp(max=self.bound)
        return (hidden / self.scale).sum(dim=(1, 2)).mean()


class Rotary(nn.Module):
    """Model whose layers share cos and sin, which have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(LENGTH).float(), torch.arange(WIDTH) / WIDTH)
        cos, sin = angles.cos()[None], angles.sin()[None]
        for layer in self.layers:
            left, right = hidden.chunk(2, dim=-1)
            turned = hidden * cos + torch.cat([-right, left], dim=-1) * sin
            hidden = F.silu(layer(turned)) + hidden
        return F.log_softmax(hidden, dim=-1)[..., 3:7].mean().neg()


class Plain(nn.Module):
    """Model without numbered modules."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, 4)
        self.decoder = nn.Linear(4, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.mse_loss(self.decoder(self.encoder(hidden).sigmoid()), hidden)


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "gpt": (lambda: TiedGPT(dropout=0.1), tokens_and_targets),
    "learned bias": (LearnedBias, tokens_and_targets),
    "skips": (Skips, Skips.batch),
    "regions": (Regions, hidden_states),
    "in place": (InPlace, hidden_states),
    "buffers": (Buffers, hidden_states),
    "rotary": (Rotary, hidden_states),
    "plain": (Plain, hidden_states),
    "sequential": (
        lambda: WithLoss(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4))),
        hidden_states,
    ),
}


class TwiceTied(nn.Module):
    """Model that uses one matrix as embedding, in the middle, and as head."""

    USES = ("tokens.weight", "middle.weight", "head.weight")

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.back = nn.Linear(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.middle.weight = self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = F.dropout(self.tokens(tokens), 0.1)
        hidden = self.norm(hidden + self.back(self.middle(hidden).relu()))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())

    batch = staticmethod(tokens_and_targets)


class SeveralInputs(nn.Module):
    """Model with a buffer, a frozen parameter, changes in place, and an optional input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 2, WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.offset = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(
        self, hidden: Tensor, keep: Tensor, bias: Tensor | None = None, target: Tensor | None = None
    ) -> Tensor:
        # A view of a parameter, used far from where it is made.
        offset = self.offset.expand(hidden.shape)
        for layer in self.layers:
            hidden = F.dropout(layer(hidden), 0.1).mul_(self.scale)
            hidden[:, 0] += 1
            hidden = self.frozen(hidden.masked_fill_(~keep, 0.25))
        hidden = hidden + offset
        if bias is not None:
            hidden = hidden + bias
        return F.mse_loss(hidden, torch.zeros_like(hidden) if target is None else target)

    @staticmethod
    def batch(seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        shape = (BATCH, LENGTH, WIDTH)
        return {
            **hidden_states(seed),
            "keep": torch.rand(shape, generator=generator) > 0.2,
            "bias": torch.randn(shape, generator=generator),
            "target": torch.randn(shape, generator=generator),
        }

    @classmethod
    def batch_without_bias(cls, seed: int = 0) -> Batch:
        return {name: entry for name, entry in cls.batch(seed).items() if name != "bias"}


class StraightThrough(torch.autograd.Function):
    """Rounding function whose backward passes the gradient on unchanged."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.round()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Scaled(torch.autograd.Function):
    """Function of several tensors and a number, whose backward is not its forward's derivative."""

    @staticmethod
    def forward(left: Tensor, by: float, right: Tensor) -> tuple[Tensor, Tensor]:
        return left * by, right + by

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx: Any, scaled: Tensor, moved: Tensor) -> tuple[Tensor, None, Tensor]:  # type: ignore[override]
        (left,) = ctx.saved_tensors
        return scaled * (3 * ctx.by) * left.sign(), None, moved * 2


class Alone(torch.autograd.Function):
    """Function that returns a tuple of one tensor and hides stored tensors from autograd.

    Its backward clips, so it is not linear in the gradient.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> tuple[Tensor]:
        ctx.held = [value.sin(), value.cos()]
        return (value + 1,)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.clamp(-1e-4, 1e-4) * ctx.held[0] * ctx.held[1]


class Functions(nn.Module):
    """Model with custom functions; one `apply` was bound when the class was defined."""

    rounded = staticmethod(StraightThrough.apply)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            left, right = Scaled.apply(layer(hidden), 0.5 + number // 2, hidden)
            with torch.no_grad():
                whole = self.rounded(left)
            (hidden,) = Alone.apply(self.rounded(4 * left) * 0.1 + right.relu() + whole)
        return hidden.square().mean()


TINY = GPT3Config(2, 2, 16, sequence_tokens=16, vocabulary_size=32, dropout=0.1)


class SideValues(nn.Module):
    """Model with views that live over many calls: an expanded mask, cos and sin, a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(0.1) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(LENGTH).float(), torch.arange(WIDTH) / WIDTH)
        cos, sin = angles.cos()[None], angles.sin()[None]
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        mask = seen[None, None].expand(BATCH, HEADS, LENGTH, LENGTH)
        for layer in self.layers:
            first, second = hidden.chunk(2, dim=-1)
            hidden = layer(hidden * cos + torch.cat([-second, first], dim=-1) * sin, mask)
        return (hidden[:, 0] - first[:, -1].mean()).square().mean()


OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "functions": (Functions, hidden_states),
    "twice tied": (TwiceTied, tokens_and_targets),
    "gpt3": (lambda: GPT3(TINY), tokens_and_targets),
    "gpt, longer": (
        lambda: TiedGPT(dropout=0.1, length=128),
        partial(tokens_and_targets, length=128),
    ),
    "side values": (SideValues, hidden_states),
    "several inputs": (SeveralInputs, SeveralInputs.batch),
    "several inputs, one left out": (SeveralInputs, SeveralInputs.batch_without_bias),
    **ZOO,
}


class WithLoss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden).square().mean()
