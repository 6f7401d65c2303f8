"""A small GPT, computed for several peers at once, and its text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from atom.graph.ir import ParameterLayout
from benchmarks.shared.text import standard_library

VOCABULARY, TOKENS = 256, 64
HELD_BACK, MOST_BYTES = 200_000, 6_000_000
VALIDATED = 256
"""Sequences of the validation loss."""


@dataclass(frozen=True)
class Size:
    """Size of the model."""

    layers: int
    width: int
    heads: int = 4

    @property
    def layout(self) -> ParameterLayout:
        width = self.width
        shapes = {"tokens": (VOCABULARY, width), "places": (TOKENS, width)}
        for n in range(self.layers):
            shapes |= {
                f"{n}.first.gain": (width,), f"{n}.first.bias": (width,),
                f"{n}.attend": (width, 3 * width), f"{n}.mix": (width, width),
                f"{n}.second.gain": (width,), f"{n}.second.bias": (width,),
                f"{n}.up": (width, 4 * width), f"{n}.down": (4 * width, width),
            }  # fmt: skip
        hidden = {name for name in shapes if name.endswith(("attend", "mix", "up", "down"))}
        shapes |= {"last.gain": (width,), "last.bias": (width,)}
        return ParameterLayout.of(shapes, hidden)

    def first_value(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float(name.endswith("gain")))
        narrow = name.endswith(("mix", "down"))
        std = 0.02 / (2 * self.layers) ** 0.5 if narrow else 0.02
        return torch.randn(shape, generator=generator) * std

    def losses(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of each peer, [peers].

        Args:
            weights: by name, each with a first dimension [peers].
            tokens: [peers, sequences, TOKENS].
            targets: [peers, sequences, TOKENS].
        """
        peers, sequences, _ = tokens.shape
        which = torch.arange(peers, device=tokens.device)[:, None, None]
        x = weights["tokens"][which, tokens] + weights["places"][:, None]
        for n in range(self.layers):
            y = _times(_normal(x, weights, f"{n}.first"), weights[f"{n}.attend"])
            y = y.view(peers * sequences, TOKENS, 3, self.heads, self.width // self.heads)
            query, key, value = y.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            y = y.transpose(1, 2).reshape(peers, sequences, TOKENS, self.width)
            x = x + _times(y, weights[f"{n}.mix"])
            y = _times(_normal(x, weights, f"{n}.second"), weights[f"{n}.up"])
            x = x + _times(functional.gelu(y), weights[f"{n}.down"])
        scores = _times(_normal(x, weights, "last"), weights["tokens"].transpose(1, 2))
        each = functional.cross_entropy(
            scores.view(-1, VOCABULARY), targets.reshape(-1), reduction="none"
        )
        return each.view(peers, -1).mean(1)


def _normal(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    gain, bias = weights[f"{name}.gain"], weights[f"{name}.bias"]
    return functional.layer_norm(x, x.shape[-1:]) * gain[:, None, None] + bias[:, None, None]


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    flat = torch.bmm(x.reshape(x.shape[0], -1, x.shape[-1]), matrix)
    return flat.view(*x.shape[:-1], matrix.shape[-1])


@cache
def text() -> tuple[Tensor, Tensor]:
    """Return bytes of Python's standard library: for training, and for validation."""
    tokens = standard_library()[:MOST_BYTES].long()
    return tokens[:-HELD_BACK], tokens[-HELD_BACK:]


def drawn(
    source: Tensor, shape: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw tokens and targets, each [*shape, TOKENS]."""
    starts = torch.randint(len(source) - TOKENS - 1, tuple(shape), generator=generator)
    places = starts[..., None] + torch.arange(TOKENS)
    return source[places], source[places + 1]


def gradients(size: Size, arenas: Tensor, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses [peers] and gradients [peers, elements], on the host.

    Args:
        size: the model.
        arenas: weights of the peers, [peers, elements].
        tokens: [peers, sequences, TOKENS].
        targets: [peers, sequences, TOKENS].
    """
    leaf = arenas.detach().requires_grad_()
    weights = _by_name(size.layout, leaf)
    losses = size.losses(weights, tokens, targets)
    losses.sum().backward()
    assert leaf.grad is not None
    return losses.detach(), leaf.grad


@torch.no_grad()
def validation_loss(size: Size, weights: Tensor) -> float:
    """Return the loss of weights [elements] on text outside the training."""
    generator = torch.Generator().manual_seed(999)
    tokens, targets = drawn(text()[1], (1, VALIDATED), generator)
    named = _by_name(size.layout, weights[None])
    pieces = zip(tokens.split(64, 1), targets.split(64, 1), strict=True)
    return float(torch.stack([size.losses(named, *piece) for piece in pieces]).mean())


def _by_name(layout: ParameterLayout, arenas: Tensor) -> dict[str, Tensor]:
    peers = len(arenas)
    return {
        spec.name: arenas[:, spec.offset : spec.offset + spec.numel].view(peers, *spec.shape)
        for spec in layout.specs
    }
