"""Devices: memory for slots, and copies to and from it.

`Device` is the contract, which it fulfils itself with ordinary memory and threads, for the CPU and
for tests. `atom.swap.streams.CudaDevice` replaces these by streams and events.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from atom.base.clock import BootClock, Clock
from atom.swap.host_memory import allocate_host_memory, give_back_pages
from atom.swap.host_sums import Gate, HostSum, add_admitted

Report = Callable[[float, float], None] | None
"""Function that receives begin and end of a piece of work, in seconds of the device's clock.

None: the work is not timed. The function may be called from any thread, at the latest when the
device has been drained. Failed work is not reported.
"""


Ready = Callable[[], None]
"""Function that returns when the sources of a load may be read."""


def at_once() -> None:
    """Return at once: default of `ready`, for loads whose sources may be read at any time."""


Copy = tuple[torch.Tensor, torch.Tensor]
"""Destination and source of a copy; both flat, contiguous, of the same length and dtype."""
Copies = Sequence[Copy]
Arrival = Callable[[], torch.Tensor]
"""Function that returns bytes which were sent to another device.

Call it on the receiving device, inside `computing`: operations issued afterwards see the bytes.
"""
_GENERATOR = threading.RLock()
"""Lock of PyTorch's only CPU generator, which all computing threads share."""


class RandomState(NamedTuple):
    """States of the generators that random operations draw from."""

    cpu: torch.Tensor
    device: torch.Tensor | None = None


class Lane:
    """One background thread, started on first use, with at most one unfinished job per slot."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._jobs: dict[int, Future[None]] = {}

    def submit(self, slot: int, job: Callable[[], None]) -> None:
        """Run a job on the thread, after waiting for the slot's previous job."""
        self.wait(slot)
        self._jobs[slot] = self._executor.submit(_run_with_threads, torch.get_num_threads(), job)

    def wait(self, slot: int) -> None:
        """Wait until the slot's last job is done, and raise its exception."""
        job = self._jobs.pop(slot, None)
        if job is not None:
            job.result()

    def drain(self) -> None:
        """Wait for every job, and raise the exception of the first that failed."""
        jobs, self._jobs = list(self._jobs.values()), {}
        wait(jobs)
        for job in jobs:
            job.result()

    def close(self) -> None:
        """Cancel jobs that have not started, and wait until the thread ends."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _run_with_threads(threads: int, job: Callable[[], None]) -> None:
    """Run a job with its sender's number of arithmetic threads, a setting of each thread."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    job()


class Device:
    """Memory and copies of one device. The thread that runs the engine calls all methods.

    Most methods only *issue* work; an error in the background is raised by the next method that
    waits for that work. After an error, call `drain` before any new work.

    In this class slots are in ordinary memory, filled and emptied by background threads. Operations
    are synchronous: they have finished when a load or a copy of gradients is issued. The two
    background threads still run in parallel with the next operations.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or BootClock()
        self._loads = Lane("atom-load")
        self._gradients = Lane("atom-gradients-out")  # values have negative slots
        self.unlocked_bytes = 0
        """Bytes of `host_memory` that could not be page-locked, so that their copies are slower."""

    @property
    def torch_device(self) -> torch.device:
        """PyTorch device on which sub-models compute."""
        return torch.device("cpu")

    def host_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros [elements] on the host, for copies at full speed until `close`."""
        return allocate_host_memory(elements, dtype)

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros [elements] on the device, valid until `give_back`."""
        return allocate_host_memory(elements, dtype)

    def give_back(self, slots: Sequence[torch.Tensor]) -> None:
        """Release the memory of these slots, and cached free memory, for other programs.

        The content is lost, but views of the slots survive until `take_again`. Call it only while
        no work is under way.
        """
        for slot in slots:
            give_back_pages(slot)

    def take_again(self, slots: Sequence[torch.Tensor]) -> None:
        """Allocate memory for slots that were given back, filled with zeros.

        An out-of-memory error is raised without any slot having memory.
        """
        for slot in slots:
            slot.zero_()

    def reserve_gradients(self, slots: int, elements: int, dtype: torch.dtype) -> None:
        """Allocate all memory that `gradients_out` needs.

        Args:
            slots: Number of gradient slots.
            elements: Most elements of a slot.
            dtype: Dtype in which gradients leave the device: float32 or bfloat16.
        """
        # Nothing to do here: gradients are added straight from their slot.

    def computing(self) -> AbstractContextManager[object]:
        """Return a context in which the engine issues tensor operations."""
        return nullcontext()

    def stepping(self) -> AbstractContextManager[object]:
        """Return a context in which the optimizer steps parameters on the device.

        Its operations finish before loads that are issued later begin. It may be used from any
        thread, while no pass is under way, or while the pass does not use these parameters before
        it loads them.
        """
        return nullcontext()

    @contextmanager
    def timed(self, report: Report) -> Iterator[None]:
        """Return a context that reports how long its operations took. Use it inside `computing`."""
        started = self._clock.now()
        yield
        if report is not None:
            report(started, self._clock.now())

    def load(self, slot: int, copies: Copies, report: Report, ready: Ready = at_once) -> None:
        """Start filling a slot, after all operations issued so far.

        Args:
            slot: Number of the slot.
            copies: Copies into the slot.
            report: Receives the time of the copies, without the wait for `ready`.
            ready: Called first, by the loading thread. It returns when the sources may be read; its
                exception fails the load.
        """

        def copy_in() -> None:
            ready()
            self._reported(lambda: _copy_all(copies), report)

        self._loads.submit(slot, copy_in)

    def wait_loaded(self, slot: int) -> None:
        """Let operations issued from now on see the slot's new content."""
        self._loads.wait(slot)

    def gradients_out(
        self, gradient_slot: int, sums: Sequence[HostSum], gate: Gate, report: Report, added: Report
    ) -> None:
        """Start adding gradients to sums on the host, after all operations issued so far.

        The gate admits all of them or none. Sums to be replaced are lost in either case. A method
        that waits for the gradients raises NotFinite if they are not finite.

        Args:
            gradient_slot: Slot that holds the gradients.
            sums: Additions to make.
            gate: Gate of the pass.
            report: Receives the time of the copy.
            added: Receives the time of the addition, if it is separate from the copy.
        """
        job = partial(_add_if_finite, sums, gate)
        self._gradients.submit(gradient_slot, lambda: self._reported(job, report))

    def values_out(self, key: int, copies: Copies, report: Report) -> None:
        """Start copying values to the host, after all operations issued so far.

        The sources must not change until `wait_values_out` with the same key.
        """
        job = partial(_copy_all, copies)
        self._gradients.submit(-1 - key, lambda: self._reported(job, report))

    def wait_values_out(self, key: int) -> None:
        """Let operations issued from now on follow the last `values_out` with this key."""
        self._gradients.wait(-1 - key)

    @torch.no_grad()
    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Arrival:
        """Start copying bytes to another device, after all operations issued so far.

        Args:
            size_bytes: Size of the block on the other device.
            pieces: Bytes [n], each with its offset in the block. The caller may release them at
                once.
            to: The other device.
        """
        memory = torch.empty(size_bytes, dtype=torch.uint8, device=to)
        for start, piece in pieces:
            memory[start : start + piece.numel()].copy_(piece)
        return lambda: memory

    def _reported(self, job: Callable[[], None], report: Report) -> None:
        with self.timed(report):
            job()

    def wait_gradients_out(self, gradient_slot: int) -> None:
        """Let operations issued from now on overwrite the sources of the last `gradients_out`.

        The gradients need not have reached their sums.
        """
        self._gradients.wait(gradient_slot)

    def settle(self) -> None:
        """Wait until all is computed and all gradients on their way are known to be finite.

        Only a failure (`Gate.failure`) can then keep them from being added. Raises as `drain`.
        """
        self.drain()

    def drain(self) -> None:
        """Wait until no work is under way and all gradients were added; raise the first error."""
        try:
            self._loads.drain()
        finally:
            self._gradients.drain()

    def seed(self, seed: int) -> RandomState:
        """Return the random state that follows from a seed; leave the current state unchanged."""
        generator = torch.Generator()
        generator.manual_seed(seed)
        return RandomState(generator.get_state())

    def random_state(self) -> RandomState:
        """Return the current state of the random generators."""
        return RandomState(torch.get_rng_state())

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        """Return a context whose random operations draw from `state`.

        Where all devices share one generator, other devices wait.

        Args:
            state: State to start from; None: the operations set their own (in a backward).
        """
        with _GENERATOR:
            if state is not None:
                torch.set_rng_state(state.cpu)
            yield

    def close(self) -> None:
        """Stop the threads and release host memory. Idempotent."""
        self._loads.close()
        self._gradients.close()


class CpuDevice(Device):
    """The processor as a device, on a machine without a GPU or for a user who wants none."""


@torch.no_grad()
def _copy_all(copies: Copies) -> None:
    for destination, source in copies:
        destination.copy_(source)


@torch.no_grad()
def _add_if_finite(sums: Sequence[HostSum], gate: Gate) -> None:
    add_admitted(sums, gate, gate.extremes(sums))
