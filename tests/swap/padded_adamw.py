"""PyTorch's own fused AdamW on parameters of any length.

Its vectors leave over what they do not divide, and round that in another way (see
`atom.optim.adamw`), so the parameters are copied into longer ones for the step and back.
"""

import torch
from torch import Tensor

from atom.graph.ir import padded_elements
from atom.optim.adamw import AdamW


class PaddedAdamW:
    """Steps `parameters` in place with what their `.grad` holds; only matrices decay."""

    def __init__(self, parameters: dict[str, Tensor], settings: AdamW, rate: float) -> None:
        self._parameters = parameters
        self._padded = {name: _padded(p).requires_grad_() for name, p in parameters.items()}
        groups = [
            {"params": [self._padded[n] for n, p in parameters.items() if p.dim() >= 2]},
            {
                "params": [self._padded[n] for n, p in parameters.items() if p.dim() < 2],
                "weight_decay": 0.0,
            },
        ]
        self._optimizer = torch.optim.AdamW(
            groups, rate, settings.betas, settings.epsilon, settings.weight_decay, fused=True
        )

    @torch.no_grad()
    def step(self) -> None:
        for name, parameter in self._parameters.items():
            assert parameter.grad is not None
            self._padded[name].grad = _padded(parameter.grad)
        self._optimizer.step()
        for name, parameter in self._parameters.items():
            parameter.copy_(self._padded[name][: parameter.numel()].view(parameter.shape))


def _padded(value: Tensor) -> Tensor:
    flat = torch.zeros(padded_elements(value.numel()))
    flat[: value.numel()] = value.detach().flatten()
    return flat
