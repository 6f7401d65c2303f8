"""How fast this box takes an optimizer step: measured, briefly, with the real thing."""

import statistics
import time
from collections.abc import Callable

import torch

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW, AdamWSettings
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm

SAMPLE_ELEMENTS = 2**23
"""134 MB of states: far more than any cache holds, little enough to be done in a blink."""
REPEATS = 5


def adamw_elements_per_s(
    precision: torch.dtype,
    form: StateForm = StateForm.EXACT,
    elements: int = SAMPLE_ELEMENTS,
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Parameters updated per second, as the median of some steps over states larger than caches.

    `precision`: of what the device loads, which each step rewrites. Raises: MemoryError;
    MismatchError when the kernel has not been compiled.
    """
    layout = ParameterLayout.of({"sample": (elements // 64, 64)})
    store = HostStore.allocate(layout, precision, form=form)
    adamw, gradient = AdamW(store, AdamWSettings()), torch.full((elements,), 1e-3)
    seconds = []
    for step in range(1, REPEATS + 2):
        start = now()
        adamw.step(gradient, 1e-4, step)
        seconds.append(now() - start)
    return elements / statistics.median(seconds[1:])  # the first one faults pages in
