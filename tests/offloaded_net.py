"""Small module for tests of `atom.offload`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import atom

RATE = 1e-2
X, Y = torch.randn(8, 16), torch.randint(5, (8,))


class Net(nn.Module):
    """Module whose tensors are whole vectors of the processor, as PyTorch's AdamW rounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, inputs: Tensor, scale: Tensor | None = None) -> Tensor:
        hidden = self.b(torch.relu(self.norm(self.a(inputs))))
        return hidden if scale is None else hidden * scale


def require_same(offloaded: atom.OffloadedModel, plain: nn.Module) -> None:
    found = offloaded.state_dict()["model"]
    assert found.keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(found[name], value), name


def offloaded_net(
    model: nn.Module | None = None, loss: Any = functional.cross_entropy, **options: Any
) -> atom.OffloadedModel:
    return atom.offload(model or Net(), loss, options.pop("example", (X, Y)), **options)
