"""How fast a device takes a share of the optimizer's step: measured, with the real thing."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from atom.optim.bucket import GRADIENT, Bucket
from atom.optim.device_adamw import DeviceAdamW
from atom.optim.speed import REPEATS, SAMPLE_ELEMENTS, adamw_elements_per_s
from atom.optim.step import PIECE_ELEMENTS
from atom.swap.device import Device
from atom.swap.host_memory import allocate_host_memory
from atom.swap.state_form import StateForm
from atom.swap.step_rates import StepRates
from atom.swap.workbench import Pair

BRINGS = 4
"""Pieces in a row."""


def step_rates(
    device: Device,
    precision: torch.dtype,
    form: StateForm,
    gradients_registered: bool = False,
    elements: int = SAMPLE_ELEMENTS,
) -> StepRates:
    """Of the host and of a device beside it, in about a second. Takes memory on the device for two
    pieces meanwhile, and some 20 MB of registered host memory until the device is closed.

    `gradients_registered`: whether the driver knows the memory that gradients come from.
    Raises: MemoryError; what the device raises.
    """
    sample = _Sample(device, min(PIECE_ELEMENTS, elements), precision, form, gradients_registered)
    alone = adamw_elements_per_s(precision, form, elements)
    with sample.busy_link() as brought:
        began = time.perf_counter()
        beside = adamw_elements_per_s(precision, form, elements)
        link = brought() / (time.perf_counter() - began)
    return StepRates(alone, min(alone, beside), link, sample.device_per_s())


class _Sample:
    """One piece on the host, two on the device."""

    def __init__(
        self,
        device: Device,
        elements: int,
        precision: torch.dtype,
        form: StateForm,
        registered: bool,
    ) -> None:
        memory = device.slot_memory
        self._elements = elements
        self._buckets = [Bucket.allocate(elements, precision, form, memory) for _ in range(2)]
        self._adamw = DeviceAdamW(elements, form, memory)
        self._bad = memory(1, torch.bool)[0]
        self._bench = device.workbench()
        self._host = {}
        for name, arena in self._buckets[0].arenas.items():
            plain = name == GRADIENT and not registered
            host_memory = allocate_host_memory if plain else device.host_memory
            self._host[name] = host_memory(elements, arena.dtype)

    @contextmanager
    def busy_link(self) -> Iterator[Callable[[], int]]:
        """Brings pieces in and others back, all the time; tells how many parameters went each way
        so far, at least one piece."""
        pieces, ending, failures = [0], threading.Event(), list[Exception]()
        first = threading.Event()

        def work() -> None:
            try:
                while not ending.is_set():
                    self._there_and_back()
                    pieces[0] += 1
                    first.set()
            except Exception as failure:  # noqa: BLE001 - raised below, on the caller's thread
                failures.append(failure)
                first.set()

        def brought() -> int:
            first.wait()
            return pieces[0] * self._elements

        thread = threading.Thread(target=work, name="atom-busy-link")
        thread.start()
        try:
            yield brought
        finally:
            ending.set()
            thread.join()
        if failures:
            raise failures[0]

    def _there_and_back(self) -> None:
        incoming, outgoing = self._buckets
        there: list[Pair] = [
            (incoming.arenas[name], self._host[name]) for name in (*incoming.read, GRADIENT)
        ]
        back = [(self._host[name], outgoing.arenas[name]) for name in outgoing.written]
        self._bench.take_back(1, back)
        self._bench.bring(0, there, lambda: None)
        self._bench.wait_worked(0)
        self._bench.wait_back(1)

    def device_per_s(self) -> float:
        """Updated in a row, nothing brought or taken back."""
        given = self._buckets[0].arenas[GRADIENT]

        def work() -> None:
            self._adamw.update(self._buckets[0], given, False, (0, 1), self._bad)

        seconds = []
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            for _ in range(BRINGS):
                self._bench.bring(0, [], work)
            self._bench.rest()
            seconds.append(time.perf_counter() - began)
        return BRINGS * self._elements / statistics.median(seconds[1:])
