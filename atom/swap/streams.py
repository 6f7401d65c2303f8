"""CUDA device with persistent streams (in, compute, out, across), ordered by events alone.

Why each ordering holds:

* A load into a slot waits for `free[slot]`, recorded on the compute stream when the load was
  issued: all earlier uses of the slot have then finished.
* Computing on a slot waits for `loaded[slot]`, which the loader's thread records on the in stream
  after the copies. So the engine first waits for that thread's job.
* Gradients are checked on the compute stream and leave after `ready[slot]`, recorded after the
  check. The slot is written again after `copied[slot]`, which the thread that issues copies records
  on the out stream; the engine first waits for this thread's job. Another thread waits for
  `copied[slot]` and adds. The next copy to the same staging memory is issued after the addition.
* A value leaves after `values_ready[key]`, recorded on the compute stream. The compute stream waits
  for `values_copied[key]` before the value's memory is released, so the next user of the memory
  follows the copy. A value comes back like a load: after all operations issued before, including
  this wait.
* Bytes for another device leave on the across stream, which waits for the compute stream. The other
  device's compute stream waits for the event recorded after the copies.
* Computing follows operations that its caller issued on another stream (constants, batches): the
  compute stream does not wait for the default stream by itself.

Autograd runs each backward operation on the stream of its forward. Therefore everything that is
allocated while computing belongs to the compute stream. The slots do not; they are given back and
taken again only while no work at all is under way.

So no tensor is ever released to another stream, and after the first pass nothing here allocates
memory. The exception are tensors for another device: they are used on two streams, and the
allocator is informed of the second one (`record_stream`). A separate thread issues loads, because a
thread that launches kernels cannot keep a fast link busy as well.
"""

import math
import os
import platform
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from atom.base.clock import Clock
from atom.base.errors import DeviceError
from atom.swap.device import Arrival, Copies, Device, Lane, RandomState, Ready, Report, at_once
from atom.swap.host_memory import LEAST_REGISTERED_BYTES, allocate_host_memory, register, unregister
from atom.swap.host_sums import Gate, HostSum, add_admitted, with_host_sources

ALLOCATOR_SETTINGS = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""Environment variables with which a user configures PyTorch's allocator."""


class StreamTimes:
    """Times of work on streams, in seconds of the clock, measured without blocking threads.

    A pair of events is recorded around each piece of work, and read when the device has been
    drained. The times count from an origin: an event that is recorded when the first measurement
    begins. The time of the origin is known, because the device is idle then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin: torch.cuda.Event | None = None
        self._origin_s = 0.0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event, Callable[..., None]]] = []

    def begin(self, stream: torch.cuda.Stream, report: Report) -> None:
        """Set the origin if work is timed and there is none. Call it from the engine's thread."""
        if report is not None and self._origin is None:
            stream.synchronize()
            self._origin_s = self._clock.now()
            self._origin = self.mark(stream)

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Return an event that takes the time at which the stream has done its work until now."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    @contextmanager
    def around(self, stream: torch.cuda.Stream, report: Report) -> Iterator[None]:
        """Measure the work that is issued to the stream in the `with` block."""
        if report is None:
            yield
            return
        started = self.mark(stream)
        yield
        self._pending.append((started, self.mark(stream), report))

    def end(self, succeeded: bool) -> None:
        """Report all measurements if the work succeeded, and forget the origin."""
        pending, self._pending = self._pending, []
        if succeeded:
            for started, ended, report in pending:
                report(self._at(started), self._at(ended))
        self._origin = None

    def _at(self, event: torch.cuda.Event) -> float:
        assert self._origin is not None
        after_ms = float(self._origin.elapsed_time(event))
        return self._origin_s + after_ms / 1e3


class CudaDevice(Device):
    """One GPU, by index. Only one engine thread at a time may use it.

    Args:
        memory_bytes: Limit of PyTorch's allocator; limits of open devices on one GPU add up. None:
            all memory.

    Raises:
        DeviceError: The GPU does not exist, or does not support `precision`.
    """

    def __init__(
        self,
        index: int = 0,
        precision: torch.dtype = torch.float32,
        memory_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        require_gpu(index, precision)
        super().__init__(clock)
        self._device = torch.device("cuda", index)
        self._memory_bytes = math.inf if memory_bytes is None else memory_bytes
        _OPEN_DEVICES.add(self)
        self._set_allocator()
        self._times = StreamTimes(self._clock)
        with torch.cuda.device(self._device):
            self._compute = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._in = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # High priority, because its small kernels would wait behind a long matrix product.
            self._out = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            self._across = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._events: dict[tuple[str, int], torch.cuda.Event] = {}
        """Events by their names above and the slot."""
        self._staging: dict[int, torch.Tensor] = {}
        self._extremes: dict[int, torch.Tensor] = {}
        """Host memory for the extremes of each gradient slot's content."""
        self._unchecked: list[torch.Tensor] = []
        """Extremes of gradients that left since all gradients were last known to be finite."""
        self._sums = Lane("atom-gradient-sums")
        self._registered = list[torch.Tensor]()

    def _event(self, name: str, slot: int) -> torch.cuda.Event:
        """Return the slot's event of this name, created on first use."""
        if (name, slot) not in self._events:
            # Blocking: a host thread that waits for it sleeps instead of spinning.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._events[name, slot] = event
        return self._events[name, slot]

    def _set_allocator(self) -> None:
        """Limit the process's memory to the sum of the limits of all open devices on this GPU."""
        caps = [each._memory_bytes for each in _OPEN_DEVICES if each._device == self._device]
        set_allocator(self._device, sum(caps) or math.inf)

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def host_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Return zeros, page-locked if the driver can lock that much memory; held until `close`.

        The pages are made present first and registered afterwards. This is much faster than pinning
        pages that are not present, and avoids PyTorch's rounding up to powers of two.
        """
        memory = allocate_host_memory(elements, dtype)
        if memory.nbytes >= LEAST_REGISTERED_BYTES:
            with torch.cuda.device(self._device):
                if register(memory):
                    self._registered.append(memory)
                else:  # slower copies through the driver's buffers, with the same bytes
                    self.unlocked_bytes += memory.nbytes
        return memory

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        with torch.cuda.device(self._device):
            memory = torch.zeros(elements, dtype=dtype, device=self._device)
            torch.cuda.synchronize()
        return memory

    def give_back(self, slots: Sequence[torch.Tensor]) -> None:
        """Release the slots' memory; views of the empty storages stay, so parameters stay bound."""
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            for memory in slots:
                memory.untyped_storage().resize_(0)
            if slots:
                give_back_cache()
            else:  # other devices may be computing with their cuBLAS workspaces
                torch.cuda.empty_cache()

    def take_again(self, slots: Sequence[torch.Tensor]) -> None:
        with torch.cuda.device(self._device):
            try:
                for memory in slots:
                    memory.untyped_storage().resize_(memory.numel() * memory.element_size())
                    memory.zero_()
                torch.cuda.synchronize()
            except BaseException:
                self.give_back(slots)
                raise

    @contextmanager
    def computing(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            self._compute.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._compute):
                yield

    @contextmanager
    def stepping(self) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._in):
            yield

    @contextmanager
    def timed(self, report: Report) -> Iterator[None]:
        self._times.begin(self._compute, report)
        with self._times.around(self._compute, report):
            yield

    def load(self, slot: int, copies: Copies, report: Report, ready: Ready = at_once) -> None:
        self._times.begin(self._compute, report)
        free = self._event("free", slot)
        free.record(self._compute)
        loaded = self._event("loaded", slot)

        def copy_in() -> None:
            ready()
            self._copy(self._in, free, loaded, copies, report)

        self._loads.submit(slot, copy_in)

    def _copy(
        self,
        stream: torch.cuda.Stream,
        after: torch.cuda.Event,
        done: torch.cuda.Event,
        copies: Copies,
        report: Report,
    ) -> None:
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(after)
            with self._times.around(stream, report):
                for destination, source in copies:
                    destination.copy_(source, non_blocking=True)
            done.record(stream)

    def wait_loaded(self, slot: int) -> None:
        self._loads.wait(slot)
        if ("loaded", slot) in self._events:
            self._compute.wait_event(self._event("loaded", slot))

    def gradients_out(
        self, gradient_slot: int, sums: Sequence[HostSum], gate: Gate, report: Report, added: Report
    ) -> None:
        self._times.begin(self._compute, report)
        extremes = gate.extremes(sums)
        if extremes.numel():
            self._unchecked.append(extremes)
        ready = self._event("ready", gradient_slot)
        ready.record(self._compute)
        copied = self._event("copied", gradient_slot)

        def bring_out() -> None:
            with gate.adding():
                self._sums.wait(gradient_slot)  # then its staging memory is free
                host_extremes = self._extremes[gradient_slot][: extremes.numel()]
                on_host = with_host_sources(sums, self._staging[gradient_slot])
                copies = [(host_extremes, extremes)]
                moved = zip(sums, on_host, strict=True)
                copies += ((to.source, of.source) for of, to in moved if to is not of)
                self._copy(self._out, ready, copied, copies, report)

            def add() -> None:
                with gate.adding():
                    copied.synchronize()
                copies.clear()  # releases the memory of the extremes
                with Device.timed(self, added):  # the host adds
                    add_admitted(on_host, gate, host_extremes)

            def add_on_device() -> None:
                with torch.cuda.device(self._device), torch.cuda.stream(self._out):
                    add()
                    copied.record(self._out)

            stays = any(part.stays_on_gpu for part in sums)
            self._sums.submit(gradient_slot, add_on_device if stays else add)
            if stays:  # the slot is only free after their addition
                self._sums.wait(gradient_slot)

        self._gradients.submit(gradient_slot, bring_out)

    def reserve_gradients(self, slots: int, elements: int, dtype: torch.dtype) -> None:
        self._staging = {slot: self.host_memory(elements, dtype) for slot in range(slots)}
        least = LEAST_REGISTERED_BYTES // torch.float32.itemsize
        self._extremes = {slot: self.host_memory(least, torch.float32) for slot in range(slots)}

    def wait_gradients_out(self, gradient_slot: int) -> None:
        self._gradients.wait(gradient_slot)
        if ("copied", gradient_slot) in self._events:
            self._compute.wait_event(self._event("copied", gradient_slot))

    def settle(self) -> None:
        self._loads.drain()
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:
            self._compute.synchronize()
        elif not torch.isfinite(torch.cat(unchecked)).all():
            self.drain()
            raise AssertionError("the gate admitted gradients that are not finite")

    def values_out(self, key: int, copies: Copies, report: Report) -> None:
        self._times.begin(self._compute, report)
        computed, copied = self._event("values_ready", key), self._event("values_copied", key)
        computed.record(self._compute)
        self._copy(self._out, computed, copied, copies, report)

    def wait_values_out(self, key: int) -> None:
        self._compute.wait_event(self._event("values_copied", key))

    @torch.no_grad()
    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Arrival:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._across.wait_stream(self._compute)
        with torch.cuda.stream(self._across):
            memory = torch.empty(size_bytes, dtype=torch.uint8, device=to)
            for start, piece in pieces:
                memory[start : start + piece.numel()].copy_(piece, non_blocking=True)
                piece.record_stream(self._across)
            arrived.record(self._across)

        def take() -> torch.Tensor:
            stream = torch.cuda.current_stream(to)
            stream.wait_event(arrived)
            memory.record_stream(stream)
            return memory

        return take

    def drain(self) -> None:
        failures: list[Exception] = []
        waits: tuple[Callable[[], None], ...] = (
            self._loads.drain,
            self._gradients.drain,
            self._sums.drain,
            self._in.synchronize,
            self._compute.synchronize,
            self._out.synchronize,
        )
        for wait in waits:
            try:
                wait()
            except Exception as error:  # noqa: BLE001 - every lane must be idle first
                failures.append(error)
        self._unchecked.clear()
        self._times.end(succeeded=not failures)
        if failures:
            raise failures[0]

    def seed(self, seed: int) -> RandomState:
        cpu, gpu = torch.Generator(), torch.Generator(self._device)
        cpu.manual_seed(seed)
        gpu.manual_seed(seed)
        return RandomState(cpu.get_state(), gpu.get_state())

    def random_state(self) -> RandomState:
        return RandomState(torch.get_rng_state(), torch.cuda.get_rng_state(self._device))

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        if state is not None:
            torch.set_rng_state(state.cpu)
            if state.device is not None:
                torch.cuda.set_rng_state(state.device, self._device)
        yield

    def close(self) -> None:
        super().close()
        self._sums.close()
        torch.cuda.synchronize(self._device)
        give_back_cache()
        self._staging.clear()
        while self._registered:
            unregister(self._registered.pop())
        _OPEN_DEVICES.discard(self)
        self._set_allocator()


_OPEN_DEVICES = weakref.WeakSet[CudaDevice]()
"""Devices of this process that are not closed yet."""


def set_allocator(device: torch.device, memory_bytes: float) -> None:
    """Configure PyTorch's allocator for a GPU in this process, and limit it to `memory_bytes`.

    Its segments may be expanded in place, so that freed pieces join into larger ones; otherwise a
    tenth of the memory or more is lost in gaps. This is not set if the user has configured the
    allocator, nor in WSL, whose driver refuses it (pytorch/pytorch#192330).
    """
    if not (ALLOCATOR_SETTINGS & os.environ.keys() or "microsoft" in platform.release().lower()):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(memory_bytes / total_bytes, 1.0), device)


def give_back_cache() -> None:
    """Release the memory that PyTorch caches on a GPU: free blocks and cuBLAS workspaces.

    Call it only while no work is under way. cuBLAS has a workspace per thread and stream.
    """
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def require_gpu(index: int, precision: torch.dtype) -> None:
    """Raise DeviceError unless the GPU exists and computes in `precision`."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "this machine has no usable CUDA GPU",
            'check the driver, or set [device] use = "cpu" in the peer file; '
            "to plan for another machine: --assume",
        )
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"this machine has no GPU {index}; number of GPUs: {torch.cuda.device_count()}",
            "GPUs are numbered from 0",
        )
    capability = torch.cuda.get_device_capability(index)
    if not has_code(capability, torch.cuda.get_arch_list()):
        raise DeviceError(
            f"this PyTorch ({torch.__version__}) has no code for "
            f"{torch.cuda.get_device_name(index)} (sm_{capability[0]}{capability[1]})",
            "install PyTorch for another CUDA: 12.6 knows cards from sm_50 to sm_90, 13 from sm_75",
        )
    with torch.cuda.device(index):
        # An emulated matrix product in bfloat16 is many times slower than one in float16.
        if precision == torch.bfloat16 and not torch.cuda.is_bf16_supported(False):
            raise DeviceError(
                f"{torch.cuda.get_device_name(index)} has no bfloat16",
                'choose a run with precision = "float16" or "float32"',
            )


def has_code(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Return True if kernels that were built for these architectures run on a GPU.

    "sm_86" runs on GPUs of the same major version and the same or a later minor version. The driver
    compiles "compute_90" for all later ones. "sm_90a" runs on this capability only.
    """
    has = capability[0] * 10 + capability[1]
    for name in built_for:
        kind, _, number = name.partition("_")
        digits = number.rstrip("af")
        if not digits.isdigit():
            continue
        known = int(digits)
        fits = known <= has and (kind == "compute" or known // 10 == capability[0])
        if known == has or (fits and digits == number):
            return True
    return False
