"""Sums in bfloat16 as they are documented, in exact integers."""

import torch
from torch import Tensor

from atom.optim.adamw import mix64


def rounded_sum(total: Tensor, addend: Tensor, first: int, noise_key: int) -> Tensor:
    """Return the sum of bfloat16 tensors [n], rounded stochastically from float32.

    It is rounded up with the probability of the fraction that is cut off. Elements are numbered
    from `first`.
    """
    bits = (total.float() + addend.float()).view(torch.int32).to(torch.int64)
    numbers = range(first, first + total.numel())
    noise = torch.tensor([noise_of(number, noise_key) & 0xFFFF for number in numbers])
    return ((bits + noise.to(torch.int64)) >> 16).to(torch.int16).view(torch.bfloat16)


def noise_of(element: int, noise_key: int) -> int:
    """32 bits."""
    key = mix64(noise_key ^ mix64(element >> 32))
    x = (element ^ key) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = (((x ^ x >> 15) + (key >> 32)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ x >> 16
