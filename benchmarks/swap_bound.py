"""The compute bound: the same passes with nothing to wait for, at any size.

One block's weights stand for all of them, so the model fits the device whatever its size; forward,
recomputation and backward of every layer run as in the in-memory twin. There is no clipping and no
optimizer: no exact way of training can be faster with these kernels.
"""

from typing import Any

import torch
from swap_memory import Recomputed, draw
from swap_setup import SEED, MicroBatches, Setup
from torch import nn

from atom.models.gpt3 import GPT3


class ComputeBound:
    def __init__(self, setup: Setup) -> None:
        self.device = setup.torch_device
        model = GPT3(setup.config, device="meta", dtype=setup.dtype)
        model.blocks = nn.ModuleList([model.blocks[0]])
        self.model = model.to_empty(device=self.device)
        generator = torch.Generator(self.device).manual_seed(SEED)
        for name, parameter in self.model.named_parameters():
            draw(name, generator)(parameter)
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

    def facts(self, trace: str | None) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing outlives the process."""
