"""Allocations and releases of the CPU's allocator, in order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch.autograd.profiler import profile


@contextmanager
def allocations() -> Iterator[Callable[[], list[int]]]:
    """Bytes of every allocation of tensors' memory (negative: given back) in the block, by the
    function that it gives, once the block is over. Arenas and slots are not among them."""
    with profile(profile_memory=True) as recorded:
        yield lambda: _sizes(recorded)


def _sizes(recorded: profile) -> list[int]:
    found = [
        (event.start_ns(), event.nbytes())
        for event in recorded.kineto_results.events()
        if event.name() == "[memory]"
    ]
    random_state = torch.get_rng_state().nbytes  # on the host, also if a GPU computes
    ordered = sorted(found, key=lambda each: each[0])
    return [size for _, size in ordered if abs(size) != random_state]


def peak_bytes(sizes: list[int]) -> int:
    return max(accumulate(sizes), default=0)
