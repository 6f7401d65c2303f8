"""Comparison of all bits of the weights: Atom and plain PyTorch, step by step, on real text.

The reference holds the whole model on the device, without sub-models: eager PyTorch, deterministic
algorithms, one micro-batch after the other. Where a definition of the step is open, the reference
follows Atom's documentation: gradients are summed over micro-batches in float32; the tied table's
first over its uses as the head, then over its uses as the embedding (layer-major order: in float32
one sum goes on from the head's, in 16 bits each use has its own, and the two are added);
the norm is summed in the order of `atom.optim.clipping`; AdamW is PyTorch's fused one on the CPU,
on float32 masters. The text is the source of Python's standard library, a byte to a token.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT3, initialise
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.swap.host_store import StateForm, split
from benchmarks.shared.text import standard_library
from benchmarks.swap.atom_side import Atom
from benchmarks.swap.in_memory import decay_groups
from benchmarks.swap.setup import ADAMW, CLIP_NORM, SEED, MicroBatches, Setup

TIED = "embedding.tokens.weight"
AS_EMBEDDING = f"{TIED}, as the embedding"


class Exactness:
    """Two sides in one process: both take each step, then the weights are compared."""

    def __init__(self, setup: Setup) -> None:
        torch.use_deterministic_algorithms(True)
        self.setup = setup
        self.text = Text(setup)
        self.atom = Atom(setup)
        self.reference = Reference(setup, self.atom.program.layout)
        self.steps = self.equal_steps = 0
        self.differs: str | None = None

    def step(self, batches: MicroBatches) -> float:
        """Take a step on as many micro-batches of text as `batches` has."""
        batches = self.text.batches(len(batches))
        loss = self.atom.step(batches)
        expected = self.reference.step(batches)
        self.steps += 1
        if self.differs is None:
            self.differs = self._difference(loss, expected)
            self.equal_steps += self.differs is None
        return loss

    def _difference(self, loss: float, expected: float) -> str | None:
        """Return the first difference, or None if all weights and the loss are equal."""
        weights = self.atom.replica.export_parameters()
        for name, master in self.reference.masters.items():
            if not torch.equal(weights[name], master):
                distance = (weights[name] - master).abs().max().item()
                return f"step {self.steps}: {name} by up to {distance:.3g}"
        return None if loss == expected else f"step {self.steps}: the loss, {loss} for {expected}"

    def facts(self) -> dict[str, Any]:
        return {"steps": self.steps, "equal_steps": self.equal_steps, "differs": self.differs}

    def close(self) -> None:
        self.atom.close()


class Reference:
    """Plain PyTorch: passes on the device, the optimizer's step on the CPU."""

    def __init__(self, setup: Setup, layout: ParameterLayout) -> None:
        self.device, self.half = setup.torch_device, setup.dtype != torch.float32
        self.layout = layout
        self.model = GPT3(setup.config, dtype=torch.float32)
        initialise(self.model, SEED)
        self.masters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.model.to(self.device, setup.dtype)
        self.form = StateForm(setup.layout)
        self._round_masters()
        self.optimizer = torch.optim.AdamW(
            decay_groups(list(self.masters.values())),
            **ADAMW, fused=True,
        )  # fmt: skip

    def step(self, batches: MicroBatches) -> float:
        sizes, sums = (
            [len(batch["tokens"]) for batch in batches],
            defaultdict[str, list[Tensor]](list),
        )
        losses = [
            self._backward(batch, float(size), sums)
            for batch, size in zip(batches, sizes, strict=True)
        ]
        early = sums.pop(AS_EMBEDDING)
        sums[TIED] = [_added(sums[TIED]), _added(early)] if self.half else sums[TIED] + early
        self._update({name: _added(parts) for name, parts in sums.items()}, sum(sizes))
        return sum(loss * n for loss, n in zip(losses, sizes, strict=True)) / sum(sizes)

    def _backward(
        self, batch: dict[str, Tensor], sequences: float, sums: dict[str, list[Tensor]]
    ) -> float:
        """Add this micro-batch's gradients, in float32, to `sums`.

        In 16 bits the gradients are multiplied by the sequences afterwards: 16 bits cannot count
        sequences exactly.
        """
        parameters = dict(self.model.named_parameters())
        early = parameters[TIED].detach().requires_grad_()
        loss = self._loss(batch, early)
        loss.backward(torch.full_like(loss, 1.0 if self.half else sequences))
        found = {**parameters, AS_EMBEDDING: early}
        for name, parameter in found.items():
            assert parameter.grad is not None
            gradient = parameter.grad.float()
            sums[name].append(gradient * sequences if self.half else gradient)
            parameter.grad = None
        return loss.item()

    def _loss(self, batch: dict[str, Tensor], early: Tensor) -> Tensor:
        """Return the model's loss; the embedding uses `early`, the table with its own gradient."""
        embedding = self.model.embedding
        tokens, targets = (batch[name].to(self.device) for name in ("tokens", "targets"))
        table = embedding.forward
        embedding.forward = lambda ids: (
            functional.embedding(ids, early) + embedding.positions.weight[: ids.shape[1]]
        )
        try:
            loss: Tensor = self.model(tokens, targets)
            return loss
        finally:
            embedding.forward = table

    @torch.no_grad()
    def _update(self, sums: dict[str, Tensor], sequences: int) -> None:
        flat = torch.zeros(self.layout.total_elements)
        for name, gradient in sums.items():
            self.layout.view(flat, name).copy_(gradient)
        flat /= sequences
        coefficient = clip_coefficient(gradient_norm(flat), CLIP_NORM)
        for name, master in self.masters.items():
            master.grad = self.layout.view(flat, name) * coefficient
        self.optimizer.step()
        self._round_masters()

    @torch.no_grad()
    def _round_masters(self) -> None:
        """Round the masters into the model's weights: to nearest; with split state, ties go up."""
        for name, parameter in self.model.named_parameters():
            master = self.masters[name]
            if self.form.splits:
                high, low = master.bfloat16(), torch.empty(master.shape, dtype=torch.int16)
                split(master, high, low)
                master = high
            parameter.copy_(master)


class Text:
    """Source code of the standard library as sequences of bytes, one after the other."""

    def __init__(self, setup: Setup) -> None:
        self.sequences, self.length = setup.sequences, setup.config.sequence_tokens
        self.tokens = standard_library()
        self.at = 0

    def batches(self, micro_batches: int) -> list[dict[str, Tensor]]:
        return [self._batch() for _ in range(micro_batches)]

    def _batch(self) -> dict[str, Tensor]:
        taken = self.sequences * self.length
        if self.at + taken + 1 > len(self.tokens):
            self.at = 0
        piece = self.tokens[self.at : self.at + taken + 1].long()
        self.at += taken
        shape = (self.sequences, self.length)
        return {"tokens": piece[:-1].reshape(shape), "targets": piece[1:].reshape(shape)}


def _added(parts: list[Tensor]) -> Tensor:
    """Return the sum, added in this order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
