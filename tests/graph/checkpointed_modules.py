"""Modules that compute parts of themselves again in backward, by their own wish."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from traced_modules import VOCABULARY, Block, TiedGPT

again = partial(checkpoint, use_reentrant=False)


class ChunkedGPT(TiedGPT):
    """A tied head whose loss comes in chunks of tokens, the last one shorter."""

    chunk_tokens = 12

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self._hidden(tokens).flatten(0, 1)
        pairs = zip(
            hidden.split(self.chunk_tokens), targets.flatten().split(self.chunk_tokens), strict=True
        )
        return torch.stack([self._chunk(*pair) for pair in pairs]).sum() / targets.numel()

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.drop(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden)

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return again(self._loss_sum, hidden, targets)

    def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(hidden, self.tokens.weight)
        return F.cross_entropy(logits.float(), targets, reduction="sum")


class UncheckedGPT(ChunkedGPT):
    """The same numbers, everything kept."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self._loss_sum(hidden, targets)


class AgainInside(Block):
    """Its feed-forward network draws random numbers and is computed again, as is a part of it."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        return hidden + again(self.feed_forward, self.norm2(hidden))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        widened = again(lambda given: F.gelu(self.up(given)), hidden)
        with torch.no_grad():
            scale = 1 / widened.abs().amax(dim=-1, keepdim=True)
        first, second = self.drop(self.down(widened * scale)).chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)


class AgainGPT(ChunkedGPT):
    """Checkpointed inside the blocks, around one whole block, and in the head."""

    def __init__(self) -> None:
        super().__init__(dropout=0.1)
        self.blocks = nn.ModuleList([AgainInside(0.1), AgainInside(0.1), Block(0.1)])

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.drop(self.tokens(tokens))
        for block in self.blocks[:-1]:
            hidden = block(hidden)
        return self.norm(again(self.blocks[-1], hidden))


class OneOfTwoResults(ChunkedGPT):
    """A checkpointed function gives two values, one of them without a gradient."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        loss, count = again(self._both, hidden, targets)
        return loss * count

    def _both(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_sum(hidden, targets), (targets < VOCABULARY).sum() / targets.numel()


CHECKPOINTED = {
    "chunks": lambda: ChunkedGPT(dropout=0.1),
    "everywhere": AgainGPT,
    "two results": OneOfTwoResults,
}
