"""A CUDA device: persistent streams (in, compute, out, across), ordered by events alone.

Why each ordering holds:

* A load into a slot waits for `free[slot]`, recorded on the compute stream when the load was
  issued: whatever used the slot before has then finished.
* Computing on a slot waits for `loaded[slot]`, recorded on the in stream behind the copies. The
  event is recorded by the loader's thread, so the engine first waits for that thread's job.
* A gradient is judged on the compute stream and leaves after `ready[slot]`, recorded behind that.
  The slot is written again after `copied[slot]`, recorded on the out stream by the thread that
  issues copies: the engine first waits for its job. Another thread waits for `copied[slot]` and
  adds; the next copy to the same staging memory is issued when it has.
* A value leaves after `left[key]`, recorded on the compute stream. Its memory is given up after the
  compute stream was made to wait for `gone[key]`, so whoever is given it next comes after the copy.
  A value comes back as a load does: behind everything computed before, the wait included.
* Bytes for another device leave on the stream across, which waits for the compute stream. The
  other one's compute stream waits for the event recorded behind the copies.
* Computing follows whatever its caller had begun on a stream of its own (constants, batches): the
  compute stream does not wait for the default stream by itself.

Autograd runs each backward operation on the stream of its forward, so everything that is allocated
while computing belongs to the compute stream. The slots do not; they are given back, and taken
again, only while nothing at all is under way.

So no tensor is ever released to another stream, and after the first pass nothing here allocates,
but for what goes to another device: it is used on two streams, and the allocator is told of the
second one (`record_stream`). Loads are issued by their own thread: a thread that launches kernels
cannot keep a fast link busy as well.
"""

import math
import os
import platform
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from atom.base.clock import BootClock, Clock
from atom.base.errors import DeviceError
from atom.swap.device import Copy, Handed, Lane, RandomState, Report, at_once
from atom.swap.host_memory import (
    LEAST_REGISTERED_BYTES,
    allocate_host_memory,
    register,
    unregister,
)
from atom.swap.host_sums import Gate, HostSum, add_admitted, landing

ALLOCATOR_SETTINGS = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""PyTorch's names for what its user sets."""


class StreamTimes:
    """When work on streams began and ended, in seconds on the clock, without making anybody wait;
    from one drain of the device to the next.

    Pairs of events are recorded around the work, and read when the device has been drained. They
    count from one origin, recorded when the first of them is wanted, whose time on the clock is
    known because the device is idle then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin: torch.cuda.Event | None = None
        self._origin_s = 0.0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event, Report]] = []

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Sets the origin unless there is one. Call from the engine's thread."""
        if self._origin is None:
            stream.synchronize()
            self._origin_s = self._clock.now()
            self._origin = self.mark(stream)

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    @contextmanager
    def around(self, stream: torch.cuda.Stream, report: Report | None) -> Iterator[None]:
        if report is None:
            yield
            return
        started = self.mark(stream)
        yield
        self._pending.append((started, self.mark(stream), report))

    @contextmanager
    def until_now(self, report: Report | None) -> Iterator[None]:
        """Around work of a host thread."""
        started_s = self._clock.now()
        yield
        if report is not None:
            report(started_s, self._clock.now())

    def end(self, tell: bool) -> None:
        """Reports what is pending and forgets the origin. The device is idle."""
        pending, self._pending = self._pending, []
        if tell:
            for started, ended, report in pending:
                report(self._at(started), self._at(ended))
        self._origin = None

    def _at(self, event: torch.cuda.Event) -> float:
        assert self._origin is not None
        after_ms = float(self._origin.elapsed_time(event))
        return self._origin_s + after_ms / 1e3


class CudaDevice:
    """One GPU, by index. Used by one engine thread at a time. `memory_bytes`: the most that
    PyTorch's allocator may take of it, for those that are open there together; None: all.

    Raises: DeviceError when there is no such GPU, or it lacks `precision`.
    """

    def __init__(
        self,
        index: int = 0,
        precision: torch.dtype = torch.float32,
        memory_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        require_gpu(index, precision)
        self._device = torch.device("cuda", index)
        self._memory_bytes = math.inf if memory_bytes is None else memory_bytes
        _OPEN.add(self)
        self._set_allocator()
        self._times = StreamTimes(clock or BootClock())
        with torch.cuda.device(self._device):
            self._compute = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._in = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # Before the others: a small kernel of it would wait behind a long matrix product.
            self._out = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            self._across = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._free: dict[int, torch.cuda.Event] = {}
        self._loaded: dict[int, torch.cuda.Event] = {}
        self._ready: dict[int, torch.cuda.Event] = {}
        self._copied: dict[int, torch.cuda.Event] = {}
        self._left: dict[int, torch.cuda.Event] = {}
        self._gone: dict[int, torch.cuda.Event] = {}
        self._staging: dict[int, torch.Tensor] = {}
        self._judged: dict[int, torch.Tensor] = {}
        """Per gradient slot, where the extremes of what it held land."""
        self._undecided: list[torch.Tensor] = []
        """Extremes of what has left since the last time that everything was known to be finite."""
        self._loads = Lane("atom-load")
        self._gradients = Lane("atom-gradients-out")
        self._sums = Lane("atom-gradient-sums")
        self._registered = list[torch.Tensor]()
        self.unlocked_bytes = 0

    def _set_allocator(self) -> None:
        """Its cap is of the process: what is open may take it together."""
        caps = [each._memory_bytes for each in _OPEN if each._device == self._device]
        set_allocator(self._device, sum(caps) or math.inf)

    @property
    def torch_device(self) -> torch.device:
        return self._device

    def host_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros, page-locked if the driver can lock so much. Faulted in first, registered after:
        much faster than pinning cold pages, and without PyTorch's rounding up to powers of two.
        Held until `close`."""
        memory = allocate_host_memory(elements, dtype)
        if memory.nbytes >= LEAST_REGISTERED_BYTES:
            with torch.cuda.device(self._device):
                if register(memory):
                    self._registered.append(memory)
                else:  # copies take a detour through the driver's buffers: the same bytes, later
                    self.unlocked_bytes += memory.nbytes
        return memory

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        with torch.cuda.device(self._device):
            memory = torch.zeros(elements, dtype=dtype, device=self._device)
            torch.cuda.synchronize()
        return memory

    def give_back(self, slots: Sequence[torch.Tensor]) -> None:
        """A storage without memory keeps its views: parameters need not be bound anew."""
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            for memory in slots:
                memory.untyped_storage().resize_(0)
            if slots:
                give_back_cache()
            else:  # other devices may be at work: cuBLAS has their workspaces in its hands
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
        self._times.begin(self._compute)
        with self._times.around(self._compute, report):
            yield

    def load(
        self,
        slot: int,
        copies: Sequence[Copy],
        report: Report | None = None,
        ready: Callable[[], None] = at_once,
    ) -> None:
        if report is not None:
            self._times.begin(self._compute)
        free = event_of(self._free, slot)
        free.record(self._compute)
        loaded = event_of(self._loaded, slot)

        def copy_in() -> None:
            ready()
            self._copy(self._in, free, loaded, copies, report)

        self._loads.submit(slot, copy_in)

    def _copy(
        self,
        stream: torch.cuda.Stream,
        after: torch.cuda.Event,
        done: torch.cuda.Event,
        copies: Sequence[Copy],
        report: Report | None,
    ) -> None:
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(after)
            with self._times.around(stream, report):
                for copy in copies:
                    copy.destination.copy_(copy.source, non_blocking=True)
            done.record(stream)

    def wait_loaded(self, slot: int) -> None:
        self._loads.wait(slot)
        if slot in self._loaded:
            self._compute.wait_event(self._loaded[slot])

    def gradients_out(
        self,
        gradient_slot: int,
        sums: Sequence[HostSum],
        gate: Gate,
        report: Report | None = None,
        added: Report | None = None,
    ) -> None:
        if report is not None:
            self._times.begin(self._compute)
        extremes = gate.extremes(sums)
        if extremes.numel():
            self._undecided.append(extremes)
        ready = event_of(self._ready, gradient_slot)
        ready.record(self._compute)
        copied = event_of(self._copied, gradient_slot)

        def bring_out() -> None:
            with gate.landing():
                self._sums.wait(gradient_slot)  # its staging memory is free
                judged = self._judged[gradient_slot][: extremes.numel()]
                landed = landing(sums, self._staging[gradient_slot])
                copies = [Copy(judged, extremes)]
                moved = zip(sums, landed, strict=True)
                copies += (Copy(to.source, of.source) for of, to in moved if to is not of)
                self._copy(self._out, ready, copied, copies, report)

            def add() -> None:
                with gate.landing():
                    copied.synchronize()
                copies.clear()  # until now it kept the memory of the extremes
                with self._times.until_now(added):
                    add_admitted(landed, gate, judged)

            def add_on_device() -> None:
                with torch.cuda.device(self._device), torch.cuda.stream(self._out):
                    add()
                    copied.record(self._out)

            stays = any(part.stays for part in sums)
            self._sums.submit(gradient_slot, add_on_device if stays else add)
            if stays:  # they were not copied: the slot is free when they are added
                self._sums.wait(gradient_slot)

        self._gradients.submit(gradient_slot, bring_out)

    def reserve_gradients(
        self, slots: int, elements: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._staging = {slot: self.host_memory(elements, dtype) for slot in range(slots)}
        least = LEAST_REGISTERED_BYTES // torch.float32.itemsize
        self._judged = {slot: self.host_memory(least, torch.float32) for slot in range(slots)}

    def wait_gradients_out(self, gradient_slot: int) -> None:
        self._gradients.wait(gradient_slot)
        if gradient_slot in self._copied:
            self._compute.wait_event(self._copied[gradient_slot])

    def settle(self) -> None:
        self._loads.drain()
        undecided, self._undecided = self._undecided, []
        if not undecided:
            self._compute.synchronize()
        elif not torch.isfinite(torch.cat(undecided)).all():
            self.drain()
            raise AssertionError("the gate has turned nothing away")

    def values_out(self, key: int, copies: Sequence[Copy], report: Report | None = None) -> None:
        if report is not None:
            self._times.begin(self._compute)
        left, gone = event_of(self._left, key), event_of(self._gone, key)
        left.record(self._compute)
        self._copy(self._out, left, gone, copies, report)

    def wait_values_out(self, key: int) -> None:
        self._compute.wait_event(self._gone[key])

    @torch.no_grad()
    def hand_over(
        self, size_bytes: int, pieces: Sequence[tuple[int, torch.Tensor]], to: torch.device
    ) -> Handed:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._across.wait_stream(self._compute)
        with torch.cuda.stream(self._across):
            memory = torch.empty(size_bytes, dtype=torch.uint8, device=to)
            for start, piece in pieces:
                memory[start : start + piece.numel()].copy_(piece, non_blocking=True)
                piece.record_stream(self._across)
            arrived.record(self._across)

        def take() -> torch.Tensor:
            here = torch.cuda.current_stream(to)
            here.wait_event(arrived)
            memory.record_stream(here)
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
            except Exception as error:  # noqa: BLE001 - every lane must be quiet before we report
                failures.append(error)
        self._undecided.clear()
        self._times.end(tell=not failures)
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
        self._loads.close()
        self._gradients.close()
        self._sums.close()
        torch.cuda.synchronize(self._device)
        give_back_cache()
        self._staging.clear()
        while self._registered:
            unregister(self._registered.pop())
        _OPEN.discard(self)
        self._set_allocator()


_OPEN = weakref.WeakSet[CudaDevice]()
"""Not closed yet, in this process."""


def set_allocator(device: torch.device, memory_bytes: float) -> None:
    """PyTorch's, of this process: what it takes of a GPU may grow where it lies, so that pieces
    given up become one again; else a tenth and more is lost in gaps. Not where somebody has set it
    already, nor in WSL, whose driver refuses that (pytorch/pytorch#192330)."""
    if not (ALLOCATOR_SETTINGS & os.environ.keys() or "microsoft" in platform.release().lower()):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    has_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(memory_bytes / has_bytes, 1.0), device)


def give_back_cache() -> None:
    """What PyTorch keeps of a GPU's memory for later: free blocks, and cuBLAS' workspaces, one for
    each thread and stream. When nothing is under way."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def event_of(events: dict[int, torch.cuda.Event], slot: int) -> torch.cuda.Event:
    """The slot's, made when first asked for."""
    if slot not in events:
        # Blocking: a host thread that waits for it sleeps instead of burning a core.
        events[slot] = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return events[slot]


def require_gpu(index: int, precision: torch.dtype) -> None:
    """Is there this GPU, and does it compute in these numbers? Raises: DeviceError."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "this machine has no usable CUDA GPU",
            'check the driver, or set [device] use = "cpu" in the peer file; '
            "to plan for another machine: --assume",
        )
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"there is no GPU {index}; this machine has {torch.cuda.device_count()}",
            "count from 0",
        )
    capability = torch.cuda.get_device_capability(index)
    if not has_code(capability, torch.cuda.get_arch_list()):
        raise DeviceError(
            f"this PyTorch ({torch.__version__}) has no code for "
            f"{torch.cuda.get_device_name(index)} (sm_{capability[0]}{capability[1]})",
            "install PyTorch for another CUDA: 12.6 knows cards from sm_50 to sm_90, 13 from sm_75",
        )
    with torch.cuda.device(index):
        # Emulated, a matrix product in bfloat16 is many times slower than in float16.
        if precision == torch.bfloat16 and not torch.cuda.is_bf16_supported(False):
            raise DeviceError(
                f"{torch.cuda.get_device_name(index)} has no bfloat16",
                'only runs with precision = "float16" or "float32" suit it',
            )


def has_code(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether kernels built for these architectures run on a GPU of this capability. "sm_86": on
    those of its major version, and no earlier minor one. "compute_90": the driver compiles it for
    all later ones. "sm_90a": on this one alone."""
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
