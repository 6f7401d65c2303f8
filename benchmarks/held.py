"""Device memory as it was allocated, on the CPU twin. Shared."""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from atom.swap.device import CpuDevice


class CountingDevice(CpuDevice):
    slot_bytes = 0

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.slot_bytes += elements * dtype.itemsize
        return super().slot_memory(elements, dtype)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that the tensors it makes have at a time; slots are not among them."""
    with profile(profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))
