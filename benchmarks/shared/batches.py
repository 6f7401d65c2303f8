"""Micro-batches of random tokens."""

import torch
from torch import Tensor


def random_batches(
    count: int,
    vocabulary: int,
    shape: tuple[int, int],
    seed: int,
    names: tuple[str, str] = ("tokens", "targets"),
) -> list[dict[str, Tensor]]:
    """Return `count` micro-batches of this shape, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randint(vocabulary, shape, generator=generator) for name in names}
        for _ in range(count)
    ]
