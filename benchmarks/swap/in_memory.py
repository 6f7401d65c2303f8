"""Plain PyTorch with everything on the device: the in-memory twin, and the compute bound.

The twin does the same work as Atom's side with the same module (`atom.models.gpt3`): whole on the
device in the computing precision; every block recomputed in the backward
(`torch.utils.checkpoint`, nothing else kept), or none of them; micro-batch after micro-batch; each
parameter's gradient added in float32 as soon as autograd has made it, and freed; the global norm of
the float32 sums, clipping, fused AdamW on float32 masters, and a rounded copy of the masters for
the next forward. 18 bytes of device memory per parameter in 16 bits.

The bound runs the same passes with nothing to wait for, at any size: one block's weights stand for
all of them, so the model fits the device. There is no clipping and no optimizer: no exact way of
training can be faster with these kernels.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atom.models.gpt3 import GPT3, STANDARD_DEVIATION, parameter_shapes
from benchmarks.swap.setup import ADAMW, CLIP_NORM, SEED, MicroBatches, Setup, SideMissing
from benchmarks.swap.sides import Plain

BYTES_PER_PARAMETER = 18
"""Master, two moments and gradient sum in float32; the working copy in 16 bits."""
WORKING_BYTES = 4 * 10**9
"""Least memory for activations, logits and the driver."""


class Recomputed(nn.Module):
    """Block whose backward keeps only the input and computes the rest again."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = checkpoint(
            self.block, hidden, use_reentrant=False, preserve_rng_state=False
        )
        return result


class InMemory(Plain):
    """Twin of one process.

    Raises:
        SideMissing: the device cannot hold the model.
    """

    def __init__(self, setup: Setup, recompute: bool) -> None:
        _require_memory(setup)
        self.device = setup.torch_device
        self.model = random_model(setup)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.pairs = [_Pair(parameter, setup.dtype) for parameter in parameters]
        for number, block in enumerate(self.model.blocks if recompute else ()):
            self.model.blocks[number] = Recomputed(block)
        masters = [pair.master for pair in self.pairs]
        self.optimizer = torch.optim.AdamW(decay_groups(masters), **ADAMW, fused=True)

    def step(self, batches: MicroBatches) -> float:
        """Take a step and return its mean loss; AdamW may still be under way on the device."""
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


class ComputeBound(Plain):
    """Passes of one block that stands for all blocks."""

    def __init__(self, setup: Setup) -> None:
        self.device = setup.torch_device
        model = GPT3(setup.config, device="meta", dtype=setup.dtype)
        model.blocks = nn.ModuleList([model.blocks[0]])
        self.model = _drawn(model, setup)
        again = Recomputed(self.model.blocks[0])
        self.model.blocks = nn.ModuleList([again] * setup.config.layers)

    def step(self, batches: MicroBatches) -> float:
        losses = []
        for batch in batches:
            loss = self.model(**{k: v.to(self.device) for k, v in batch.items()})
            loss.backward()
            self.model.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()


class _Pair:
    """Parameter in the computing precision, with its float32 master and gradient sum."""

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
    """Return a model with random weights, drawn on the device.

    The distribution is Atom's, the bits are not. Comparing speeds needs no
    more, and billions of numbers drawn on the host would take minutes.
    """
    return _drawn(GPT3(setup.config, device="meta", dtype=setup.dtype), setup)


def _drawn(model: GPT3, setup: Setup) -> GPT3:
    model = model.to_empty(device=setup.torch_device)
    generator = torch.Generator(setup.torch_device).manual_seed(SEED)
    for name, parameter in model.named_parameters():
        draw(name, generator)(parameter)
    return model


def host_model(setup: Setup, precision: torch.dtype) -> GPT3:
    """Return a model with random weights on the host, drawn on the device (which is quick)."""
    model = GPT3(setup.config, device="meta", dtype=precision).to_empty(device="cpu")
    generator = torch.Generator(setup.torch_device).manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.empty(parameter.shape, dtype=precision, device=setup.torch_device)
            draw(name, generator)(value)
            parameter.copy_(value)
    return model


def draw(name: str, generator: torch.Generator) -> Callable[[Tensor], object]:
    """Return the function that fills a parameter with its first value, in place."""
    if name.endswith("bias"):
        return nn.init.zeros_
    if name.endswith("norm.weight"):
        return nn.init.ones_
    return lambda value: nn.init.normal_(value, 0.0, STANDARD_DEVIATION, generator)


def decay_groups(parameters: list[Any]) -> list[dict[str, Any]]:
    """Return parameter groups: matrices decay, biases and norms do not."""
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
            f"needs about {needs / 1e9:.0f} GB of GPU memory, the GPU has {has / 1e9:.0f} GB"
        )
