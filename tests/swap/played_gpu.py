"""A GPU played on the host: streams, events, and the memory that each PyTorch operation touches.

`played(machine)` lets `CudaDevice` run on it. All work is issued to a `Machine`, which decides when
it runs. `stream_order.Order` runs it at once, and checks that it is ordered after every earlier
conflicting access to the same memory. `random_order.RandomOrder` runs it in a random legal order.

Operations are intercepted where PyTorch dispatches them, below autograd. An operation that touches
device memory runs on its thread's current stream. Device memory is the memory of slots, memory that
is allocated within `on_device` or while a stream is current, and the results of operations on such
memory. All other operations run at once on the calling thread, and so do the compiled loops over
host memory.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, _base
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atom.optim.adamw import AdamW
from atom.optim.optimizer import Part
from atom.swap import streams
from atom.swap.device import CpuDevice
from atom.swap.host_kernels import HostKernels
from atom.swap.host_sums import HostSum
from atom.swap.streams import CudaDevice

KERNELS = {"add": 1, "add_rounded": 1, "sum_of_squares": 0}
"""Loops over host memory: how many of their tensors, the first ones, they write."""


class Stream:
    """Named for what `CudaDevice` makes it for."""

    def __init__(self, machine: "Machine", name: str) -> None:
        self._machine, self._name = machine, name

    def __str__(self) -> str:
        return f"stream {self._name}"

    def wait_event(self, event: "Event") -> None:
        self._machine.wait(self, event)

    def wait_stream(self, other: "Stream") -> None:
        event = Event(self._machine)
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        self._machine.synchronize(self)


class Event:
    def __init__(self, machine: "Machine", **options: bool) -> None:
        self._machine = machine
        self.records: list[Any] = []
        """Data of the machine about each record of the event, the latest last."""

    def record(self, stream: Stream) -> None:
        self._machine.record(self, stream)

    def synchronize(self) -> None:
        self._machine.synchronize(self)

    def elapsed_time(self, later: "Event") -> float:
        return self._machine.elapsed_ms(self, later)


@dataclass(frozen=True, eq=False)
class Memory:
    """A storage, from allocation to release."""

    stream: Stream | None
    """Stream on which it was allocated; None: host memory.

    The memory can be allocated on this stream again after its release.
    """
    also_on: set[Stream] = field(default_factory=set)
    """Streams that the allocator was informed of: it waits for them before it reuses the memory."""


class Machine:
    """Streams and the memory of the device. Runs all work at once and checks nothing."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.streams = [Stream(self, "default")]
        self._memories: dict[int, Memory] = {}
        self._here = threading.local()

    # --- what other machines do otherwise; but for `told` and `learn` under the lock

    def run(self, stream: Stream, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on a stream. The memory of its results is allocated at once."""
        return func(*args, **kwargs)

    def launch(self, stream: Stream, loop: Callable[[], object]) -> None:
        """Run a compiled loop on a stream."""
        loop()

    def touched(
        self, stream: Stream | None, name: str, read: Sequence[Tensor], written: Sequence[Tensor]
    ) -> None:
        """Note accesses of work issued to a stream; without a stream, of this thread."""

    def freed(self, memory: Memory) -> None:
        """Note that the memory was released."""

    def record(self, event: Event, stream: Stream) -> None:
        """Record the event on the stream."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work on the stream follow the event."""

    def synchronize(self, awaited: Stream | Event) -> None:
        """Let later work on this thread follow the stream or event."""

    def elapsed_ms(self, earlier: Event, later: Event) -> float:
        return 0.0

    def told(self) -> Any:
        """Return the work that this thread knows to be done, for another thread."""

    def learn(self, told: Any) -> None:
        """Note that this thread continues after a message of another thread."""

    # --- what all have

    def synchronize_all(self, device: object = None) -> None:
        for stream in self.streams:
            self.synchronize(stream)

    def new_stream(self, priority: int = 0) -> Stream:
        names = ["default", "compute", "in", "out", *map(str, range(4, 99))]
        self.streams.append(Stream(self, names[len(self.streams)]))
        return self.streams[-1]

    def current_stream(self, device: object = None) -> Stream:
        return getattr(self._here, "stream", self.streams[0])

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._here.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    @contextmanager
    def on_device(self) -> Iterator[None]:
        self._here.allocates = True
        yield
        self._here.allocates = False

    def is_on_device(self, tensor: Tensor) -> bool:
        with self.lock:
            return self.memory(tensor).stream is not None

    def memory(self, tensor: Tensor, stream: Stream | None = None) -> Memory:
        """Return the memory of a tensor.

        Args:
            tensor: Tensor on the host or the device.
            stream: Stream on which the memory is allocated, if it is new and on the device.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memories:
            self._memories[key] = Memory(stream)
            weakref.finalize(storage, self._free, key)
        return self._memories[key]

    def _free(self, key: int) -> None:
        with self.lock:
            self.freed(self._memories.pop(key))

    def is_used_on(self, tensor: Tensor, stream: Stream) -> None:
        with self.lock:
            self.memory(tensor).also_on.add(stream)

    def unregistered(self, memory: Tensor) -> None:
        """Note an access to memory that must not be in use any more."""
        with self.lock:
            self.touched(None, "unregister", [], [memory])

    def kernel(
        self, name: str, read: list[Tensor], written: list[Tensor], loop: Callable[[], Any]
    ) -> Any:
        """Run a compiled loop over host memory, or a GPU's kernel over device memory."""
        on_device, found = self.is_on_device((read + written)[0]), list[Any]()
        stream = self.current_stream() if on_device else None
        with self.lock:
            self.touched(stream, name, read, written)
            if stream is not None:
                self.launch(stream, lambda: found.append(loop()))
                if not written:  # the host wants the result
                    self.synchronize(stream)
        return loop() if stream is None else found[0] if found else None

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation of PyTorch."""
        if func.is_view or func is torch.ops.aten.set_.source_Storage:
            return func(*args, **kwargs)  # nothing is touched
        given = tensors((args, kwargs))
        with self.lock:
            stream = self._stream_for(given)
            written = written_by(func, args, kwargs)
            if stream is None:
                result = func(*args, **kwargs)
            else:
                result = self.run(stream, func, args, kwargs)
            returned, made = tensors(result), made_of(result, given)
            if returned and not written and not made:
                return result  # a view
            for tensor in made:
                self.memory(tensor, stream)
            read = [t for t in given if all(t is not other for other in written)]
            self.touched(stream, str(func), read, [*written, *made])
            gives_number = not returned and not written
            if stream is not None and (gives_number or self._host_waits(func, args, kwargs)):
                self.synchronize(stream)
            return result

    def _stream_for(self, given: Sequence[Tensor]) -> Stream | None:
        """Return the stream of an operation; None: the calling thread runs it."""
        stream, owners = self.current_stream(), [self.memory(tensor).stream for tensor in given]
        on_device = any(owners)
        if not given:
            on_device = getattr(self._here, "allocates", False) or stream is not self.streams[0]
        return stream if on_device else None

    def _host_waits(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Return True for a copy between host and device that is not marked as non-blocking."""
        if func is not torch.ops.aten.copy_.default or (*args[2:], *kwargs.values()) == (True,):
            return False
        return len({self.memory(tensor).stream is None for tensor in args[:2]}) == 2


def tensors(tree: object) -> list[Tensor]:
    """Return all tensors of a nested structure, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for each in tree for tensor in tensors(each)]


def made_of(result: object, given: Sequence[Tensor]) -> list[Tensor]:
    """Results with memory of their own."""
    there = {tensor.untyped_storage()._cdata for tensor in given}
    return [t for t in tensors(result) if t.untyped_storage()._cdata not in there]


def written_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Arguments that the operation says it writes."""
    return [
        tensor
        for index, name in _written(func)
        for tensor in tensors(args[index] if index < len(args) else kwargs.get(name))
    ]


@functools.cache
def _written(func: Any) -> list[tuple[int, str]]:
    arguments = enumerate(func._schema.arguments)
    return [(n, a.name) for n, a in arguments if a.alias_info and a.alias_info.is_write]


class _Watched(TorchDispatchMode):
    """Shows a machine what this thread calls."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._machine.call(func, args, kwargs or {})


class HostedDevice(CudaDevice):
    """CUDA device whose device memory is on the host."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._device = torch.device("cpu")

    drawing = CpuDevice.drawing

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        with self._machine.on_device():
            return super().slot_memory(elements, dtype)


@contextmanager
def hosted(machine: Machine) -> Iterator[pytest.MonkeyPatch]:
    """Replace CUDA's streams and events by the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "Stream": machine.new_stream,
            "Event": partial(Event, machine),
            "current_stream": machine.current_stream,
            "device": lambda device: nullcontext(),
            "stream": machine.on,
            "synchronize": machine.synchronize_all,
            "get_rng_state": lambda device: None,  # numbers are drawn on the host
            "set_rng_state": lambda state, device: None,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(Tensor, "record_stream", lambda one, stream: machine.is_used_on(one, stream))
        patch.setattr(streams, "require_gpu", lambda index, precision: None)
        patch.setattr(streams, "give_back_cache", lambda: None)
        patch.setattr(streams, "set_allocator", lambda device, memory_bytes: None)
        patch.setattr(streams, "register", lambda memory: True)
        patch.setattr(streams, "unregister", machine.unregistered)
        yield patch


@contextmanager
def played(machine: Machine) -> Iterator[None]:
    """Replace CUDA's streams and events, and intercept threads and operations."""
    with hosted(machine) as patch:
        stays = property(lambda part: machine.is_on_device(part.destination))
        patch.setattr(HostSum, "stays_on_gpu", stays)
        _watch_loops(patch, machine)
        _watch_threads(patch, machine)
        with _Watched(machine):
            yield


def _watch_loops(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    def watched(name: str, writes: int) -> None:
        loop = getattr(HostKernels, name)

        def told(kernels: HostKernels, *given: Any) -> Any:
            run = partial(loop, kernels, *given)
            return machine.kernel(name, tensors(given)[writes:], tensors(given)[:writes], run)

        patch.setattr(HostKernels, name, told)

    for name, writes in KERNELS.items():
        watched(name, writes)
    update = AdamW.update

    def updated(adamw: AdamW, part: Part, gradient: Tensor, step: Any) -> None:
        written = [*part.stored.values(), *part.state.values()]
        run = partial(update, adamw, part, gradient, step)
        machine.kernel("AdamW", [gradient], written, run)

    patch.setattr(AdamW, "update", updated)


def _watch_threads(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Tell the machine how threads are ordered.

    A thread that starts a thread or job, or holds a condition, sends a message. A thread that runs
    the job, joins the thread, or holds the condition next, receives it. Futures, events and queues
    consist of conditions.
    """
    known, here = weakref.WeakKeyDictionary[Any, Any](), threading.local()
    """`known` has the last message by thread or condition. A thread listens while it runs."""
    here.listens = True

    def tell(to: object) -> None:
        if getattr(here, "listens", False):
            known[to] = machine.told()

    def learn(of: object) -> None:
        if getattr(here, "listens", False) and of in known:
            machine.learn(known[of])

    def around(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def watched(one: Any, *given: Any, **named: Any) -> Any:
            if before is not None:
                before(one)
            result = method(one, *given, **named)
            if after is not None:
                after(one)
            return result

        patch.setattr(owner, name, watched)

    around(threading.Thread, "start", before=tell)
    around(threading.Thread, "join", after=learn)
    around(threading.Condition, "__enter__", after=learn)
    around(threading.Condition, "__exit__", before=tell)
    around(threading.Condition, "wait", before=tell, after=learn)
    around(  # a thread that waits for several futures holds all their conditions
        _base._AcquireFutures, "__enter__",
        after=lambda held: [learn(future._condition) for future in held.futures],
    )  # fmt: skip
    run, submit = threading.Thread.run, ThreadPoolExecutor.submit

    def ran(thread: threading.Thread) -> None:
        here.listens = True
        learn(thread)
        jobs = getattr(getattr(thread, "_target", None), "__module__", "")
        with nullcontext() if jobs == "concurrent.futures.thread" else _Watched(machine):
            run(thread)  # the jobs of a pool are watched one by one
        tell(thread)

    def submitted(pool: ThreadPoolExecutor, job: Any, *given: Any, **named: Any) -> Any:
        told = machine.told()

        def watched() -> Any:
            machine.learn(told)
            with _Watched(machine):
                return job(*given, **named)

        here.listens = False  # a pool asks which of its threads idle: no order may rest on that
        try:
            return submit(pool, watched)
        finally:
            here.listens = True

    patch.setattr(threading.Thread, "run", ran)
    patch.setattr(ThreadPoolExecutor, "submit", submitted)
