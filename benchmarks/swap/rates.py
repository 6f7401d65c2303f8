"""Rates of the machine: link, matrix products, host AdamW. Ceilings for the table's other rows.

Link rates are of copies between page-locked host memory and the device, alone and both ways at
once. Host AdamW runs in place over a whole model's states (no cache holds them), alone and while
another thread keeps the link busy both ways.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from atom.base.clock import BootClock
from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import parameter_shapes
from atom.optim.adamw import AdamW
from atom.optim.optimizer import optimizer_state
from atom.optim.stepper import Stepper
from atom.swap.device import Device
from atom.swap.host_store import HostStore, StateForm
from benchmarks.swap.atom_side import open_device
from benchmarks.swap.setup import Setup

COPY_BYTES = {"cuda": 2**28, "cpu": 2**24}
MATRIX = {"cuda": 8192, "cpu": 512}
REPEATS = 5
QUEUED = 4
"""Copies under way per direction, so that the link never waits for this thread."""


class Rates:
    """Side that takes no steps."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.device = open_device(setup)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"matmul_flop_per_s": self._matmul()}
        link = _Link(self.device, self.setup.device) if self.setup.device == "cuda" else None
        if link is not None:
            found |= link.rates()
        return found | self._adamw(link)

    def _matmul(self) -> float:
        side, device = MATRIX[self.setup.device], self.setup.torch_device
        generator = torch.Generator(device).manual_seed(1)
        left, right = (
            torch.randn(side, side, device=device, generator=generator).to(self.setup.dtype)
            for _ in range(2)
        )
        seconds = [self._timed(lambda: left @ right) for _ in range(3 + REPEATS)][3:]
        return 2.0 * side**3 / statistics.median(seconds)

    def _timed(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.setup.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def _adamw(self, link: "_Link | None") -> dict[str, Any]:
        layout = ParameterLayout.of(parameter_shapes(self.setup.config))
        state = optimizer_state(AdamW(), layout, StateForm.EXACT)
        memory = self.device.host_memory
        store = HostStore.allocate(layout, self.setup.dtype, memory, optimizer_state=state)
        store.gradients.fill_(1e-3)
        stepper, steps = Stepper(store, AdamW(), BootClock()), iter(range(1, 10**6))

        def rate() -> float:
            seconds = []
            for _ in range(1 + REPEATS):
                began = time.perf_counter()
                stepper.begin(store.gradients, 1e-4, next(steps))
                stepper.wait()  # the link stays busy
                seconds.append(time.perf_counter() - began)
            return layout.total_elements / statistics.median(seconds[1:])

        found: dict[str, Any] = {"adamw_alone_per_s": rate()}
        if link is not None:
            with link.busy() as moved:
                began = time.perf_counter()
                found["adamw_per_s"] = rate()
                seconds = time.perf_counter() - began
                found["link_meanwhile_bytes_per_s"] = moved[0] / seconds
        return found

    def close(self) -> None:
        self.device.close()


class _Link:
    """Copies of one size in both directions, each on its own stream."""

    def __init__(self, device: Device, kind: str) -> None:
        self._bytes = COPY_BYTES[kind]
        self._host = [device.host_memory(self._bytes, torch.uint8) for _ in range(2)]
        self._gpu = [device.slot_memory(self._bytes, torch.uint8) for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def rates(self) -> dict[str, float]:
        return {
            "link_in_bytes_per_s": self._rate([True]),
            "link_out_bytes_per_s": self._rate([False]),
            "link_both_bytes_per_s": self._rate([True, False]),
        }

    @contextmanager
    def busy(self) -> Iterator[list[int]]:
        """Keeps both directions busy; counts the bytes that went each way."""
        moved, ending = [0], threading.Event()

        def work() -> None:
            while not ending.is_set():
                self._copy([True, False], QUEUED)
                moved[0] += QUEUED * self._bytes

        thread = threading.Thread(target=work, name="busy-link")
        thread.start()
        try:
            yield moved
        finally:
            ending.set()
            thread.join()

    def _rate(self, directions: list[bool]) -> float:
        """Return bytes per second of each direction."""
        self._copy(directions, 1)
        began = time.perf_counter()
        self._copy(directions, REPEATS * QUEUED)
        return REPEATS * QUEUED * self._bytes / (time.perf_counter() - began)

    def _copy(self, directions: list[bool], times: int) -> None:
        for _ in range(times):
            for into in directions:
                number = int(into)
                ends = self._gpu[number], self._host[number]
                target, source = ends if into else ends[::-1]
                with torch.cuda.stream(self._streams[number]):
                    target.copy_(source, non_blocking=True)
        for into in directions:
            self._streams[int(into)].synchronize()
