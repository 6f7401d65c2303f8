"""Hidden matrices are recognised by their use, and distinguished from embeddings and heads."""

from collections.abc import Callable

import pytest
import torch
import transformers_zoo
from torch import Tensor, nn
from torch.nn import functional

from atom.graph.trace import trace

WIDTH, WORDS = 12, 12
"""Sizes with which an embedding has the same shape as a hidden matrix."""


class Small(nn.Module):
    """Model with an embedding, two hidden matrices and a head that may be tied to it."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(4, WIDTH))
        self.scale = nn.Parameter(torch.randn(1, WIDTH))
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.first((self.words(tokens) + self.places) * self.scale)
        x = x @ self.second.transpose(0, 1).contiguous()
        return functional.cross_entropy(self.head(x).view(-1, WORDS), targets.view(-1))


class LookedUpInto(Small):
    """Model that also looks up rows of a matrix that it uses in products."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens, targets) + self.first.weight[tokens].mean()


def hidden(model: nn.Module, batch: dict[str, Tensor] | None = None) -> set[str]:
    tokens = torch.zeros(2, 4, dtype=torch.long)
    layout = trace(model, batch or {"tokens": tokens, "targets": tokens}).layout
    return {spec.name for spec in layout.specs if spec.hidden_matrix}


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_are_none(tied: bool) -> None:
    assert hidden(Small(tied)) == {"first.weight", "second"}


def test_a_matrix_that_is_used_otherwise_too_is_none() -> None:
    assert hidden(LookedUpInto(False)) == {"second"}


def test_a_head_that_is_a_matrix_of_its_own_is_the_last_one() -> None:
    make: Callable[[], nn.Module] = lambda: transformers_zoo.make("llama", 0.0)  # noqa: E731
    found = hidden(make(), transformers_zoo.batch("llama", 0))
    matrices = {name for name, weight in make().named_parameters() if weight.dim() == 2}
    assert matrices - found == {"model.model.embed_tokens.weight", "model.lm_head.weight"}
