"""The plain sides of the parity benchmark find parameters in an arena."""

import torch

from benchmarks.parity.model import Size
from benchmarks.parity.sides import CLIP_NORM, plain_optimizers, plain_step


def test_each_parameter_gets_its_own_gradient() -> None:
    size = Size(layers=1, width=64)
    layout = size.layout
    gradient = torch.arange(layout.total_elements, dtype=torch.float32)
    optimizers, leaves = plain_optimizers(size, torch.zeros(layout.total_elements))
    plain_step(optimizers, leaves, gradient, rate=1e-3)
    clipped = gradient * (CLIP_NORM / (float(gradient.norm()) + 1e-6))
    for spec, leaf in zip(layout.specs, leaves, strict=True):
        torch.testing.assert_close(leaf.grad, layout.view(clipped, spec.name))
