"""The GPT of two blocks trained in plain PyTorch, to compare a replica with."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from atom.models.gpt3 import GPT3, initialise
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.rate import learning_rate
from tests.training.small_replica import RATE, SEED, SEQUENCES, MicroBatch, config, program

CLIP_NORM, DROPOUT_SEED, BETAS, WEIGHT_DECAY = 0.5, 3, (0.9, 0.99), 0.1
TIED = "embedding.tokens.weight"


def adamw(model: nn.Module, weight_decay: float, **options: Any) -> torch.optim.AdamW:
    """Matrices decay, vectors do not."""
    parameters = [*model.parameters()]
    matrices = {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay}
    vectors = {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([matrices, vectors], **options)


class PlainTraining:
    """Same training without Atom. `apart`: sum the tied weight's uses layer by layer."""

    def __init__(
        self,
        dropout: float,
        apart: bool,
        stepped_by: Callable[[GPT3], torch.optim.Optimizer] = lambda model: adamw(
            model, WEIGHT_DECAY, lr=1.0, betas=BETAS, fused=True
        ),
    ) -> None:
        self.model = GPT3(config(dropout))
        initialise(self.model, SEED)
        self.apart = apart
        self.parameters = dict(self.model.named_parameters())
        self.seeds = torch.Generator().manual_seed(DROPOUT_SEED)
        self.optimizer = stepped_by(self.model)

    def step(self, micro_batches: Sequence[MicroBatch], round: int) -> list[float]:
        seeds = torch.randint(2**63 - 1, (len(micro_batches),), generator=self.seeds).tolist()
        losses = self.accumulate(micro_batches, seeds)
        for parameter in self.model.parameters():
            parameter.grad /= SEQUENCES * len(micro_batches)
        coefficient = clip_coefficient(self.norm(), CLIP_NORM)
        for parameter in self.model.parameters():
            parameter.grad *= coefficient
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(RATE, round)
        self.optimizer.step()
        return losses

    def accumulate(self, micro_batches: Sequence[MicroBatch], seeds: Sequence[int]) -> list[float]:
        tied = self.parameters[TIED]
        head = tied.detach().clone().requires_grad_() if self.apart else tied
        self.model.zero_grad()
        losses, early = [], []
        for batch, seed in zip(micro_batches, seeds, strict=True):
            torch.manual_seed(seed)
            loss = self.loss(batch, head)
            loss.backward(torch.tensor(float(SEQUENCES)))
            losses.append(loss.item())
            if self.apart:
                early.append(tied.grad)
                tied.grad = None
        if self.apart:
            tied.grad = functools.reduce(torch.add, early, head.grad)
        return losses

    def loss(self, batch: MicroBatch, head: Tensor) -> Tensor:
        if not self.apart:
            return self.model(**batch)
        hidden = self.model.embedding(batch["tokens"])
        for block in self.model.blocks:
            hidden = block(hidden)
        logits = functional.linear(self.model.final_norm(hidden), head)
        return functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    def norm(self) -> float:
        """Return the norm, summed in the arena's order, on which its bits depend."""
        layout = program().layout
        flat = torch.zeros(layout.total_elements)
        for name, parameter in self.parameters.items():
            layout.view(flat, name).copy_(parameter.grad)
        return gradient_norm(flat)
