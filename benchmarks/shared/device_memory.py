"""Device memory that was allocated, on the CPU twin."""

import ctypes
from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from atom.swap.device import CpuDevice


class CountingDevice(CpuDevice):
    """CPU twin that counts the bytes of its slots."""

    slot_bytes = 0

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.slot_bytes += elements * dtype.itemsize
        return super().slot_memory(elements, dtype)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of bytes in tensors that `work` makes, without slots."""
    with profile(profile_memory=True) as recorded:
        work()
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


class Allocated:
    """Peak of bytes from malloc above those at the beginning, over all threads.

    A profiler would see its own thread only.
    """

    def __init__(self) -> None:
        self._ask = ctypes.CDLL(None).mallinfo2
        self._ask.restype = _MallInfo
        self.most_bytes = 0
        """Peak over all calls of `look`."""
        self._before = self._now()

    def look(self) -> None:
        self.most_bytes = max(self.most_bytes, self._now() - self._before)

    def _now(self) -> int:
        seen = self._ask()
        return int(seen.hblkhd + seen.uordblks)
