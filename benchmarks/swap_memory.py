"""The in-memory twin: plain PyTorch, everything on the device, the same work as Atom's side.

The same module (`atom.models.gpt3`), whole on the device in the computing precision; every block
recomputed in the backward (`torch.utils.checkpoint`, nothing else kept), or none of them;
micro-batch after micro-batch; each parameter's gradient added in float32 the moment autograd has
made it, and freed; the global norm of the float32 sums, clipping, fused AdamW on float32 masters,
and a rounded copy of the masters for the next forward. 18 bytes of device memory per parameter in
16 bits.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from swap_setup import (
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    SEED,
    WEIGHT_DECAY,
    MicroBatches,
    Setup,
    SideMissing,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atom.models.gpt3 import GPT3, STANDARD_DEVIATION, parameter_shapes

BYTES_PER_PARAMETER = 18
"""Master, two moments and gradient sum in float32; the working copy in 16 bits."""
WORKING_BYTES = 4 * 10**9
"""Activations, logits and the driver: what the twin needs besides, at the least."""


class Recomputed(nn.Module):
    """A block of which the backward keeps the input alone."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = checkpoint(
            self.block, hidden, use_reentrant=False, preserve_rng_state=False
        )
        return result


class InMemory:
    """One process's twin. Raises: SideMissing when the device cannot hold it."""

    def __init__(self, setup: Setup, recompute: bool = True) -> None:
        _require_memory(setup)
        self.device = setup.torch_device
        self.model = random_model(setup)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.pairs = [_Pair(parameter, setup.dtype) for parameter in parameters]
        for number, block in enumerate(self.model.blocks if recompute else ()):
            self.model.blocks[number] = Recomputed(block)
        masters = [pair.master for pair in self.pairs]
        self.optimizer = torch.optim.AdamW(
            decay_groups(masters), LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True
        )

    def step(self, batches: MicroBatches) -> float:
        """The mean loss. Clipping and AdamW may still be under way on the device."""
        for pair in self.pairs:
            pair.sum.zero_()
        losses = []
        for batch in batches:
            loss = self.model(**{k: v.to(self.device) for k, v in batch.items()})
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        for pair in self.pairs:
            pair.master.grad = pair.sum
        torch.nn.utils.clip_grad_norm_([pair.master for pair in self.pairs], CLIP_NORM)
        mean = torch.stack(losses).mean().item()
        self.optimizer.step()
        with torch.no_grad():
            rounded = [pair for pair in self.pairs if pair.master is not pair.parameter]
            for pair in rounded:
                pair.parameter.copy_(pair.master)
        return mean

    def facts(self, trace: str | None) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing outlives the process."""


class _Pair:
    """A parameter in the computing precision, its float32 master, and its gradient's sum."""

    def __init__(self, parameter: nn.Parameter, precision: torch.dtype) -> None:
        self.parameter = parameter
        half = precision != torch.float32
        self.master = parameter.detach().float().clone() if half else parameter
        self.sum = torch.zeros_like(self.master, dtype=torch.float32, requires_grad=False)
        parameter.register_post_accumulate_grad_hook(self._add)

    def _add(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.sum.add_(parameter.grad)
        parameter.grad = None


def random_model(setup: Setup) -> GPT3:
    """Drawn on the device itself: the same distribution as Atom's first values, not the same bits.

    Comparing speeds needs no more, and billions of numbers drawn on the host would take minutes.
    """
    model = GPT3(setup.config, device="meta", dtype=setup.dtype).to_empty(device=setup.torch_device)
    generator = torch.Generator(setup.torch_device).manual_seed(SEED)
    for name, parameter in model.named_parameters():
        draw(name, generator)(parameter)
    return model


def host_model(setup: Setup, precision: torch.dtype) -> GPT3:
    """The same on the host, for sides that take it from there. Drawn on the device, where it is
    quick, a parameter at a time."""
    model = GPT3(setup.config, device="meta", dtype=precision).to_empty(device="cpu")
    generator = torch.Generator(setup.torch_device).manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.empty(parameter.shape, dtype=precision, device=setup.torch_device)
            draw(name, generator)(value)
            parameter.copy_(value)
    return model


def draw(name: str, generator: torch.Generator) -> Callable[[Tensor], object]:
    """How a parameter's first value is made, in place."""
    if name.endswith("bias"):
        return nn.init.zeros_
    if name.endswith("norm.weight"):
        return nn.init.ones_
    return lambda value: nn.init.normal_(value, 0.0, STANDARD_DEVIATION, generator)


def decay_groups(parameters: list[Any]) -> list[dict[str, Any]]:
    """Matrices decay, biases and norms do not."""
    return [
        {"params": [p for p in parameters if p.dim() >= 2]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _require_memory(setup: Setup) -> None:
    if setup.device != "cuda":
        return
    has = torch.cuda.get_device_properties(0).total_memory
    parameters = sum(map(math.prod, parameter_shapes(setup.config).values()))
    needs = parameters * BYTES_PER_PARAMETER + WORKING_BYTES
    if needs > has:
        raise SideMissing(
            f"needs about {needs / 1e9:.0f} GB of GPU memory, this one has {has / 1e9:.0f} GB"
        )
