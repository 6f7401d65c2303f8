"""How fast bytes move between host and device."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from atom.graph.profile.seconds import LinkRates, Spread

_BUFFER_BYTES = 64 * 2**20

Stopwatch = Callable[[torch.device], float]
"""Seconds since whenever, read once the device has done what it was given."""


def now(device: torch.device) -> float:
    """The usual stopwatch: a steady clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure_link(
    device: torch.device | str,
    repeats: int = 5,
    buffer_bytes: int = _BUFFER_BYTES,
    stopwatch: Stopwatch = now,
) -> LinkRates:
    """Plain copies of flat buffers, one way after the other.

    On a GPU between its memory and page-locked host memory. Where the device is the CPU, by a
    background thread, as loads are there: a copy in, and float32 sums out.
    """
    device = torch.device(device)
    elements = max(1, buffer_bytes // torch.float32.itemsize)
    host = torch.ones(elements, pin_memory=device.type == "cuda")
    there = torch.ones(elements, device=device)

    def load() -> None:
        there.copy_(host, non_blocking=True)

    def gradients_out() -> None:
        if device.type == "cpu":
            host.add_(there)
        else:
            host.copy_(there, non_blocking=True)

    size_bytes = elements * torch.float32.itemsize
    with ThreadPoolExecutor(1, "atom-profile") as background:

        def rate(action: Callable[[], None]) -> Spread:
            samples = background.submit(_samples, action, device, repeats, stopwatch).result()
            return Spread.of([size_bytes / sample for sample in samples])

        return LinkRates(rate(load), rate(gradients_out))


def _samples(
    action: Callable[[], object], device: torch.device, repeats: int, stopwatch: Stopwatch
) -> list[float]:
    """Seconds of each repeat, after a first one that touches the memory."""
    action()
    samples = []
    for _ in range(repeats):
        start = stopwatch(device)
        action()
        samples.append(max(stopwatch(device) - start, 1e-9))
    return samples
