"""A GPU played on the host: streams, events, and what memory each PyTorch operation touches.

`played(machine)` puts `CudaDevice` on it. All that is issued is told to a `Machine`, which decides
when it is carried out: `stream_order.Order` does so at once, and looks whether anything orders it
behind what touched the same memory before; `random_order.RandomOrder` in any order that is legal.

Operations are seen where PyTorch dispatches them, below autograd. One that touches device memory
runs on its thread's current stream. Device memory is what slots are made of, what is allocated
within `on_device` or while a stream is current, and what operations make of such memory. All else
is done at once by the thread that asks for it, and so are the compiled loops over host memory.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, _base
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atom.optim.adamw import AdamW
from atom.optim.optimizer import Part
from atom.swap import host_sums, streams
from atom.swap.device import RandomState
from atom.swap.host_kernels import HostKernels
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
        """What the machine knows of them, the latest one last."""

    def record(self, stream: Stream) -> None:
        self._machine.record(self, stream)

    def synchronize(self) -> None:
        self._machine.synchronize(self)

    def elapsed_time(self, later: "Event") -> float:
        self._machine.require_passed(self)
        self._machine.require_passed(later)
        return 0.0


@dataclass(frozen=True, eq=False)
class Memory:
    """A storage, as long as it lives."""

    stream: Stream | None
    """On which it was allocated, and can be allocated again when it dies. None: host memory."""


@dataclass(frozen=True)
class Touch:
    """Bytes [start, stop) of a memory are read, or written."""

    memory: Memory
    start: int
    stop: int
    writes: bool


def nothing() -> None:
    """What runs where all has been done already."""


class Machine:
    """Streams, memories and operations. By itself it does all at once, and looks at nothing."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.streams = [Stream(self, "default")]
        self._memories: dict[int, Memory] = {}
        self._here = threading.local()

    def issue(
        self,
        stream: Stream | None,
        name: str,
        touches: Sequence[Touch],
        run: Callable[[], None] = nothing,
    ) -> None:
        """An operation on a stream; without one, what this thread does itself."""
        run()

    @property
    def found(self) -> bool:
        """Is anything wrong by now?"""
        return False

    def record(self, event: Event, stream: Stream) -> None:
        """What follows on the stream is behind it."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What follows on the stream comes after the event."""

    def synchronize(self, awaited: Stream | Event) -> None:
        """What follows on this thread does."""

    def require_passed(self, event: Event) -> None:
        """Its time is read."""

    def freed(self, memory: Memory) -> None:
        """It has died."""

    def told(self) -> Any:
        """What this thread knows to be done, to be learnt by another."""

    def learn(self, told: Any) -> None:
        """This thread goes on because another one told it to."""

    def synchronize_all(self, device: object = None) -> None:
        for stream in self.streams:
            self.synchronize(stream)

    def new_stream(self, priority: int = 0) -> Stream:
        names = ["default", "compute", "in", "out", *map(str, range(4, 99))]
        self.streams.append(Stream(self, names[len(self.streams)]))
        return self.streams[-1]

    def current_stream(self) -> Stream:
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

    def touched(self, name: str, read: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        """By this thread: memory of the host."""
        with self.lock:
            self.issue(None, name, self._touches(read, written))

    def kernel(
        self, name: str, read: list[Tensor], written: list[Tensor], run: Callable[[], Any]
    ) -> Any:
        """A compiled loop: of the host, or in device memory that of a GPU."""
        if not self.is_on_device((read + written)[0]):
            self.touched(name, read, written)
            return run()
        found, stream = list[Any](), self.current_stream()
        with self.lock:
            touches = self._touches(read, written)
            self.issue(stream, name, touches, lambda: found.append(run()))
            if not written:  # the host wants the result
                self.synchronize(stream)
        return found[0] if found else None

    def is_on_device(self, tensor: Tensor) -> bool:
        with self.lock:
            return self._memory(tensor).stream is not None

    def unregistered(self, memory: Tensor) -> None:
        """Nobody may be at it."""
        self.touched("unregister", [], [memory])

    def _touches(self, read: Iterable[Tensor], written: Iterable[Tensor]) -> list[Touch]:
        spans = [*((t, False) for t in read), *((t, True) for t in written)]
        return [Touch(self._memory(t), *_extent(t), writes) for t, writes in spans if t.numel() > 0]

    def _memory(self, tensor: Tensor, stream: Stream | None = None) -> Memory:
        """`stream`: where it is allocated, if it is new and the device's."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memories:
            self._memories[key] = Memory(stream)
            weakref.finalize(storage, self._free, key)
        return self._memories[key]

    def _free(self, key: int) -> None:
        with self.lock:
            self.freed(self._memories.pop(key))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation. If it is for a stream, its results have their memory at once, and their
        numbers when the machine carries it out."""
        if func.is_view or func is torch.ops.aten.set_.source_Storage:
            return func(*args, **kwargs)  # nothing is touched
        given = _tensors((args, kwargs))
        with self.lock:
            allocates = getattr(self._here, "allocates", False)
            sent = any(self._memory(tensor).stream for tensor in given)
            if not given:
                sent = allocates or self.current_stream() is not self.streams[0]
            written = _written(func, args, kwargs)
            read = [t for t in given if all(t is not other for other in written)]
            return (self._send if sent else self._do)(func, read, written, args, kwargs)

    def _do(
        self, func: Any, read: list[Tensor], written: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        result = func(*args, **kwargs)
        made = _made(result, [*read, *written])
        if written or made or not _tensors(result):  # else a view
            self.touched(str(func), read, [*written, *made])
        return result

    def _send(
        self, func: Any, read: list[Tensor], written: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        stream, seeded = self.current_stream(), torch.Tag.nondeterministic_seeded in func.tags
        data, named = _mapped((args, kwargs), lambda tensor: tensor.data)
        result, made = written[0] if written and func._schema.returns else None, list[Tensor]()
        if seeded:
            named["generator"] = _generator_as_it_is()  # as a GPU: read when issued
        if seeded or not written:
            zeros = {id(tensor): _zeros(tensor) for tensor in (*read, *written)}
            alike = _mapped((args, kwargs), lambda tensor: zeros[id(tensor)])
            looks = func(*alike[0], **alike[1])  # as the result will
            if not written:
                result, made = looks, _made(looks, list(zeros.values()))
                if _tensors(looks) and not made:
                    return func(*args, **kwargs)  # a view
        for tensor in made:
            self._memory(tensor, stream)
        places, numbers = [tensor.data for tensor in made], list[Any]()

        def run() -> None:
            numbers.append(func(*data, **named))
            for place, value in zip(places, _tensors(numbers), strict=bool(places)):
                place.copy_(value)

        self.issue(stream, str(func), self._touches(read, [*written, *made]), run)
        if written and self._host_waits(func, args, kwargs):
            self.synchronize(stream)
        if written or made:
            return result
        self.synchronize(stream)  # the host wants a number
        return numbers[0]

    def _host_waits(self, func: Any, args: Any, kwargs: Any) -> bool:
        """For a copy between host and device that is not said to be non-blocking."""
        if func is not torch.ops.aten.copy_.default or (*args[2:], *kwargs.values()) == (True,):
            return False
        return len({self._memory(tensor).stream is None for tensor in args[:2]}) == 2


def _tensors(tree: object) -> list[Tensor]:
    """In order."""
    found = list[Tensor]()
    _mapped(tree, found.append)
    return found


def _mapped(tree: Any, change: Callable[[Tensor], object]) -> Any:
    """With its tensors changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple | list):
        return [_mapped(each, change) for each in tree]
    if isinstance(tree, dict):
        return {name: _mapped(each, change) for name, each in tree.items()}
    return tree


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """Arguments that the operation says it writes."""
    found = list[Tensor]()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def _made(result: object, given: Sequence[Tensor]) -> list[Tensor]:
    """Results with memory of their own."""
    there = {tensor.untyped_storage()._cdata for tensor in given}
    return [t for t in _tensors(result) if t.untyped_storage()._cdata not in there]


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Bytes of its storage, from the first to the last."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    return start * tensor.itemsize, (start + last + 1) * tensor.itemsize


def _zeros(tensor: Tensor) -> Tensor:
    alike = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    alike.untyped_storage().fill_(0)
    return alike


def _generator_as_it_is() -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return generator


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
    """Its device memory is the host's."""

    def __init__(self, machine: Machine | None = None) -> None:
        super().__init__()
        self._machine = machine
        self._device = torch.device("cpu")

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        with self._machine.on_device() if self._machine else nullcontext():
            return super().slot_memory(elements, dtype)

    def seed(self, seed: int) -> RandomState:
        generator = torch.Generator()
        generator.manual_seed(seed)
        return RandomState(generator.get_state(), None)

    def random_state(self) -> RandomState:
        return RandomState(torch.get_rng_state(), None)


@contextmanager
def played(machine: Machine) -> Iterator[None]:
    """Streams, events, threads and operations are the machine's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "Stream": machine.new_stream,
            "Event": partial(Event, machine),
            "current_stream": machine.current_stream,
            "device": lambda device: nullcontext(),
            "stream": machine.on,
            "synchronize": machine.synchronize_all,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(streams, "require_gpu", lambda index, precision: None)
        patch.setattr(streams, "give_back_cache", lambda: None)
        patch.setattr(streams, "set_allocator", lambda device, memory_bytes: None)
        stays = property(lambda part: machine.is_on_device(part.destination))
        patch.setattr(host_sums.HostSum, "stays", stays)
        patch.setattr(streams, "register", lambda memory: True)
        patch.setattr(streams, "unregister", machine.unregistered)
        _watch_loops(patch, machine)
        _watch_threads(patch, machine)
        with _Watched(machine):
            yield


def _watch_loops(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    def watched(name: str, writes: int) -> None:
        loop = getattr(HostKernels, name)

        def told(kernels: HostKernels, *given: Any) -> Any:
            tensors = [each for each in given if isinstance(each, Tensor)]
            run = partial(loop, kernels, *given)
            return machine.kernel(name, tensors[writes:], tensors[:writes], run)

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
    """Who starts a thread or a job, or holds a condition, tells; who runs it, joins it or holds the
    condition next, learns. Futures, events and queues are made of conditions."""
    start, run, join = threading.Thread.start, threading.Thread.run, threading.Thread.join
    enter, leave, pause = (
        getattr(threading.Condition, name) for name in ("__enter__", "__exit__", "wait")
    )
    look_at = _base._AcquireFutures.__enter__
    submit, here = ThreadPoolExecutor.submit, threading.local()
    here.listens = True
    known = weakref.WeakKeyDictionary[Any, Any]()
    """By thread or condition: what it was told last."""

    def tell(to: object) -> None:
        if getattr(here, "listens", False):
            known[to] = machine.told()

    def learn(of: object) -> None:
        if getattr(here, "listens", False) and of in known:
            machine.learn(known[of])

    def started(thread: threading.Thread) -> None:
        tell(thread)
        start(thread)

    def ran(thread: threading.Thread) -> None:
        here.listens = True
        learn(thread)
        worker = getattr(thread, "_target", None)
        if getattr(worker, "__module__", "") == "concurrent.futures.thread":
            run(thread)  # whose jobs are watched one by one
        else:
            with _Watched(machine):
                run(thread)
        tell(thread)

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        learn(thread)

    def entered(condition: threading.Condition) -> bool:
        held = enter(condition)
        learn(condition)
        return bool(held)

    def left(condition: threading.Condition, *raised: Any) -> None:
        tell(condition)
        leave(condition, *raised)

    def paused(condition: threading.Condition, timeout: float | None = None) -> bool:
        tell(condition)
        woken = pause(condition, timeout)
        learn(condition)
        return bool(woken)

    def looked_at(futures: Any) -> None:  # who waits for several holds the conditions of all
        look_at(futures)
        for future in futures.futures:
            learn(future._condition)

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

    for owner, methods in {
        threading.Thread: {"start": started, "run": ran, "join": joined},
        threading.Condition: {"__enter__": entered, "__exit__": left, "wait": paused},
        ThreadPoolExecutor: {"submit": submitted},
        _base._AcquireFutures: {"__enter__": looked_at},
    }.items():
        for name, method in methods.items():
            patch.setattr(owner, name, method)
