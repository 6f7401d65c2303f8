"""Modules that checkpoint parts of themselves, so that backward computes these parts again."""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from traced_modules import VOCABULARY, Block, TiedGPT

recomputed = partial(checkpoint, use_reentrant=False)


class ChunkedGPT(TiedGPT):
    """GPT with a tied head that computes its loss in chunks of tokens; the last one is shorter."""

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
        return recomputed(self._loss_sum, hidden, targets)

    def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(hidden, self.tokens.weight)
        return F.cross_entropy(logits.float(), targets, reduction="sum")


class UncheckedGPT(ChunkedGPT):
    """GPT with the same results as `ChunkedGPT`, but without checkpoints."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self._loss_sum(hidden, targets)


class CheckpointedBlock(Block):
    """Block that checkpoints its feed-forward network with dropout, and a part of that network."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        return hidden + recomputed(self.feed_forward, self.norm2(hidden))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        widened = recomputed(lambda given: F.gelu(self.up(given)), hidden)
        with torch.no_grad():
            scale = 1 / widened.abs().amax(dim=-1, keepdim=True)
        first, second = self.drop(self.down(widened * scale)).chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)


class CheckpointedGPT(ChunkedGPT):
    """GPT with checkpoints inside blocks, around one whole block, and in the head."""

    def __init__(self) -> None:
        super().__init__(dropout=0.1)
        self.blocks = nn.ModuleList([CheckpointedBlock(0.1), CheckpointedBlock(0.1), Block(0.1)])

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.drop(self.tokens(tokens))
        for block in self.blocks[:-1]:
            hidden = block(hidden)
        return self.norm(recomputed(self.blocks[-1], hidden))


class OneOfTwoResults(ChunkedGPT):
    """GPT with a checkpointed function that returns two values, one of them without a gradient."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        loss, count = recomputed(self._both, hidden, targets)
        return loss * count

    def _both(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_sum(hidden, targets), (targets < VOCABULARY).sum() / targets.numel()


CHECKPOINTED = {
    "chunks": lambda: ChunkedGPT(dropout=0.1),
    "everywhere": CheckpointedGPT,
    "two results": OneOfTwoResults,
}
