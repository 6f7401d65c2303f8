"""The device edge: where slots live, and who moves bytes to and from them.

`Device` is the contract. `CpuDevice` fulfils it with real slots and real threads on a box without
a GPU; `atom.swap.streams.CudaDevice` does with streams and events. The engine knows neither.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from atom.base.clock import BootClock, Clock
from atom.swap.host_memory import allocate_host_memory, give_back_pages
from atom.swap.host_sums import Gate, HostSum, add_admitted

Report = Callable[[float, float], None]
"""Told when a piece of work began and ended, in seconds of the device's clock; from any thread,
and at the latest when the device has been drained. Work that fails is not reported."""


def at_once() -> None:
    """For loads that have nothing to wait for."""


@dataclass(frozen=True)
class Copy:
    """Overwrite `destination` with `source`; both flat, contiguous, of one length and dtype."""

    destination: torch.Tensor
    source: torch.Tensor


@dataclass(frozen=True)
class RandomState:
    """State of the generators that a sub-model's random operations draw from."""

    cpu: torch.Tensor
    device: torch.Tensor | None


Handed = Callable[[], torch.Tensor]
"""Bytes on their way to another device. Called where that one computes: they are there for what is
issued from then on."""
_GENERATOR = threading.RLock()
"""PyTorch has one generator for all threads that compute on the CPU."""


class Device(Protocol):
    """Moves and memory. All methods are called by the one thread that runs the engine.

    Work is only *issued* by most methods; errors of background work are raised by the next
    method that waits for it. After an error the caller should `drain` and start anew.
    """

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def unlocked_bytes(self) -> int:
        """Of `host_memory`, what could not be page-locked: copies of it take a detour."""
        ...

    def host_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros on the host that this device copies from and to at full speed, until `close`."""
        ...

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros on the device, until they are given back."""
        ...

    def give_back(self, slots: Sequence[torch.Tensor]) -> None:
        """Gives the memory of these slots, and what else is free, back to the system, or to other
        programs. Their content is lost; views of them stay, for `take_again`. When nothing is under
        way."""
        ...

    def take_again(self, slots: Sequence[torch.Tensor]) -> None:
        """Memory for slots that were given back, zeros. Raises: out of memory; then none of them
        has any."""
        ...

    def reserve_gradients(
        self, slots: int, elements: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """Prepares for `gradients_out` of up to `elements` per slot, so that none allocates. In
        `dtype`, float32 or bfloat16, they leave."""
        ...

    def computing(self) -> AbstractContextManager[object]:
        """Where the engine's tensor operations run."""
        ...

    def timed(self, report: Report) -> AbstractContextManager[object]:
        """Reports how long the operations issued within it took. Inside `computing`."""
        ...

    def stepping(self) -> AbstractContextManager[object]:
        """Where the optimizer steps what lives on the device: operations issued within it come
        before loads that are issued later. From any thread; when no pass is under way, or what it
        works on is of no use to the pass before its load."""
        ...

    def load(
        self,
        slot: int,
        copies: Sequence[Copy],
        report: Report | None = None,
        ready: Callable[[], None] = at_once,
    ) -> None:
        """Starts filling a slot, once everything computed so far has finished.

        `ready` is called first, by the thread that loads: it returns when the sources may be
        read, and what it raises fails the load. Waiting for it is no part of what is reported.
        """
        ...

    def wait_loaded(self, slot: int) -> None:
        """Operations issued from now on see the slot's content."""
        ...

    def gradients_out(
        self,
        gradient_slot: int,
        sums: Sequence[HostSum],
        gate: Gate,
        report: Report | None = None,
        added: Report | None = None,
    ) -> None:
        """Starts bringing gradients to the host, once everything computed so far has finished.

        All of them are added, or none, as the gate says; what they replace is lost either way.
        Whoever waits for them hears of the first that are not finite (NotFinite). `added`: told of
        the addition, where it is not a part of the way out."""
        ...

    def wait_gradients_out(self, gradient_slot: int) -> None:
        """Operations issued from now on may overwrite what the last `gradients_out` of that slot
        was given. It need not have landed."""
        ...

    def settle(self) -> None:
        """Returns when all is computed, and all gradients on their way are known to be finite: that
        they land is certain then, but for a failure (`Gate.failure`). Raises: as `drain`."""
        ...

    def values_out(self, key: int, copies: Sequence[Copy], report: Report | None = None) -> None:
        """Starts copying values to the host, once everything computed so far has finished. They
        must stay as they are until `wait_values_out` of the same key."""
        ...

    def wait_values_out(self, key: int) -> None:
        """Operations issued from now on come after the last `values_out` of that key."""
        ...

    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Handed:
        """Starts copying bytes to another device, once everything computed so far has finished.
        `pieces`: with their offsets there. They may be let go of at once."""
        ...

    def drain(self) -> None:
        """Returns when nothing of the engine's is under way any more, and all that left has landed.
        Raises: the first background error."""
        ...

    def seed(self, seed: int) -> RandomState:
        """The random state that follows from a seed; the current state is left as it was."""
        ...

    def random_state(self) -> RandomState:
        """What random operations draw from next."""
        ...

    def drawing(self, state: RandomState | None = None) -> AbstractContextManager[None]:
        """Random operations within it draw from this state on; None: they bring their own (in a
        backward). Where all devices share a generator, others wait."""
        ...

    def close(self) -> None:
        """Ends the threads and releases host memory. Idempotent."""
        ...


class Lane:
    """One background thread, started when first used, with at most one job per slot to wait for."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._jobs: dict[int, Future[None]] = {}

    def submit(self, slot: int, job: Callable[[], None]) -> None:
        self.wait(slot)
        self._jobs[slot] = self._executor.submit(_with_threads, torch.get_num_threads(), job)

    def wait(self, slot: int) -> None:
        """Returns once the slot's last job is done. Raises: what the job raised."""
        job = self._jobs.pop(slot, None)
        if job is not None:
            job.result()

    def drain(self) -> None:
        """Waits for every job. Raises: what the first failed one raised."""
        jobs, self._jobs = list(self._jobs.values()), {}
        wait(jobs)
        for job in jobs:
            job.result()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


def _with_threads(threads: int, job: Callable[[], None]) -> None:
    """With as many arithmetic threads as its sender has: PyTorch counts them per thread."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    job()


class CpuDevice:
    """Slots in ordinary memory, filled and emptied by background threads.

    Computing is synchronous here, so whatever was computed "so far" has finished when a load or a
    gradient leaves; the two lanes still overlap with what is computed next.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or BootClock()
        self._loads = Lane("atom-load")
        self._gradients = Lane("atom-gradients-out")  # and values, by negative numbers

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def unlocked_bytes(self) -> int:
        return 0

    def host_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return allocate_host_memory(elements, dtype)

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return allocate_host_memory(elements, dtype)

    def give_back(self, slots: Sequence[torch.Tensor]) -> None:
        for slot in slots:
            give_back_pages(slot)

    def take_again(self, slots: Sequence[torch.Tensor]) -> None:
        for slot in slots:
            slot.zero_()

    def reserve_gradients(
        self, slots: int, elements: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """There is nothing to prepare: gradients are added from the slot itself."""

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stepping(self) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def timed(self, report: Report) -> Iterator[None]:
        started = self._clock.now()
        yield
        report(started, self._clock.now())

    def load(
        self,
        slot: int,
        copies: Sequence[Copy],
        report: Report | None = None,
        ready: Callable[[], None] = at_once,
    ) -> None:
        def copy_in() -> None:
            ready()
            self._reported(lambda: _copy_all(copies), report)

        self._loads.submit(slot, copy_in)

    def wait_loaded(self, slot: int) -> None:
        self._loads.wait(slot)

    def gradients_out(
        self,
        gradient_slot: int,
        sums: Sequence[HostSum],
        gate: Gate,
        report: Report | None = None,
        added: Report | None = None,
    ) -> None:
        job = partial(_add_sound, sums, gate)
        self._gradients.submit(gradient_slot, lambda: self._reported(job, report))

    def values_out(self, key: int, copies: Sequence[Copy], report: Report | None = None) -> None:
        job = partial(_copy_all, copies)
        self._gradients.submit(-1 - key, lambda: self._reported(job, report))

    def wait_values_out(self, key: int) -> None:
        self._gradients.wait(-1 - key)

    @torch.no_grad()
    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Handed:
        memory = torch.empty(size_bytes, dtype=torch.uint8, device=to)
        for start, piece in pieces:
            memory[start : start + piece.numel()].copy_(piece)
        return lambda: memory

    def _reported(self, job: Callable[[], None], report: Report | None) -> None:
        with nullcontext() if report is None else self.timed(report):
            job()

    def wait_gradients_out(self, gradient_slot: int) -> None:
        self._gradients.wait(gradient_slot)

    def settle(self) -> None:
        self.drain()

    def drain(self) -> None:
        try:
            self._loads.drain()
        finally:
            self._gradients.drain()

    def seed(self, seed: int) -> RandomState:
        generator = torch.Generator()
        generator.manual_seed(seed)
        return RandomState(generator.get_state(), None)

    def random_state(self) -> RandomState:
        return RandomState(torch.get_rng_state(), None)

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        with _GENERATOR:
            if state is not None:
                torch.set_rng_state(state.cpu)
            yield

    def close(self) -> None:
        self._loads.close()
        self._gradients.close()


@torch.no_grad()
def _copy_all(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.destination.copy_(copy.source)


@torch.no_grad()
def _add_sound(sums: Sequence[HostSum], gate: Gate) -> None:
    add_admitted(sums, gate, gate.extremes(sums))
