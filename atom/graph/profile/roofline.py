"""From kernels to seconds: the slower of a kernel's computing and memory traffic."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from atom.graph.costs.call_cost import Kernel


@dataclass(frozen=True)
class Rates:
    """What a device sustains."""

    flops_per_s: Mapping[torch.dtype, float]
    """Of matrix products, per precision; float32's also stands for those not named."""
    memory_bytes_per_s: float
    launch_s: float
    """Per kernel, whatever its size."""


TYPICAL = {
    "cpu": Rates({torch.float32: 1e11}, 1.5e10, 4e-6),
    "cuda": Rates({torch.float32: 2e13, torch.float16: 2e14, torch.bfloat16: 2e14}, 1.5e12, 4e-6),
}
"""To share a measured layer's seconds among its calls, and where nothing can be measured."""


def seconds(kernels: Iterable[Kernel], rates: Rates) -> float:
    """One kernel after the other."""
    return sum(_kernel_seconds(kernel, rates) for kernel in kernels)


def _kernel_seconds(kernel: Kernel, rates: Rates) -> float:
    flops_per_s = rates.flops_per_s.get(kernel.dtype, rates.flops_per_s[torch.float32])
    busy = max(kernel.flops / flops_per_s, kernel.moved_bytes / rates.memory_bytes_per_s)
    return busy + rates.launch_s
