"""Check that each access to memory follows the earlier accesses that it must not overtake.

A happens-before checker with vector clocks. Every stream and every thread counts its operations,
and knows the count of every other one up to which it follows. It learns a count from an event that
it waits for, from a synchronisation, or from another thread. Two accesses to the same bytes, of
which one writes, are a race unless the later one knows of the earlier one. The race is found even
if the run gives the right result.

A release of device memory counts as a write on the stream of the memory, because the next
allocation on the stream may get the same place.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from played_gpu import Event, Machine, Memory, Stream
from torch import Tensor

ATOM = str(Path(__file__).parents[2] / "atom")


class Actor:
    """A stream or a thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {}

    def step(self) -> int:
        """Advance the actor's own time and return it."""
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def learn(self, other: "Clock") -> None:
        for actor, time in other.items():
            if time > self.clock.get(actor, 0):
                self.clock[actor] = time


Clock = dict[Actor, int]


class Access(NamedTuple):
    """Bytes [start, stop) of a memory are read, or written."""

    start: int
    stop: int
    writes: bool
    actor: Actor
    time: int
    """Time of the actor."""
    operation: str
    thread: str
    """Thread that issued it."""
    issued: tuple[tuple[CodeType, int], ...]
    """Innermost frames of Atom's code: code and line."""

    def __str__(self) -> str:
        does = "writes" if self.writes else "reads"
        what = f"{does} bytes {self.start}-{self.stop}, {self.operation}"
        return "\n".join(
            [f"  {self.actor.name} {what}, issued by {self.thread}:"]
            + [
                f"    {c.co_filename[len(ATOM) + 1 :]}:{n} in {c.co_qualname}"
                for c, n in self.issued
            ]
        )


class Record(NamedTuple):
    """Record of an event: its thread, the thread's time, and all preceding operations."""

    thread: Actor
    time: int
    passed: Clock


class Order(Machine):
    """Machine that runs all work at once and reports races."""

    def __init__(self, tell: Callable[[object], object]) -> None:
        """Start without accesses.

        Args:
            tell: Receives each race, and each event whose time is read too early.
        """
        super().__init__()
        self._tell = tell
        self._streams: dict[Stream, Actor] = {}
        self._accesses: weakref.WeakKeyDictionary[Memory, list[Access]]
        self._accesses = weakref.WeakKeyDictionary()
        self._threads = threading.local()
        self._all_threads: list[Actor] = []

    def touched(
        self, stream: Stream | None, name: str, read: Sequence[Tensor], written: Sequence[Tensor]
    ) -> None:
        actor = self._thread() if stream is None else self._issued_to(stream)
        issued = self._issue(actor, name)
        for tensors, writes in ((read, False), (written, True)):
            for tensor in tensors:
                if tensor.numel() > 0:
                    access = Access(*_extent(tensor), writes, *issued)
                    self._look_at(self.memory(tensor), access, [actor.clock])

    def _issue(self, actor: Actor, name: str) -> tuple[Any, ...]:
        """Return the data that all accesses of one operation share."""
        return actor, actor.step(), name, self._thread().name, _frames()

    def _issued_to(self, stream: Stream) -> Actor:
        """Return the stream's actor, after it has learned all that the issuing thread knows."""
        actor = self._actor(stream)
        actor.learn(self._thread().clock)
        return actor

    def _look_at(self, memory: Memory, access: Access, clocks: Iterable[Clock]) -> None:
        kept = list[Access]()
        for old in self._accesses.get(memory, []):
            known = any(old.time <= clock.get(old.actor, 0) for clock in clocks)
            overlaps = old.start < access.stop and access.start < old.stop
            if overlaps and not known and (old.writes or access.writes):
                self._tell(f"nothing orders these accesses to one memory:\n{old}\n{access}")
            within = access.start <= old.start and old.stop <= access.stop
            if not (known and within and access.writes >= old.writes):
                kept.append(old)
        self._accesses[memory] = [*kept, access]

    def freed(self, memory: Memory) -> None:
        """Check the release by the last thread that held the memory.

        All other threads had released it before.
        """
        if memory.stream is not None:
            actor = self._issued_to(memory.stream)
            for stream in memory.also_on:
                actor.learn(self._actor(stream).clock)
            freeing = Access(0, sys.maxsize, True, *self._issue(actor, "is free"))
            self._look_at(memory, freeing, [each.clock for each in (actor, *self._all_threads)])

    def record(self, event: Event, stream: Stream) -> None:
        with self.lock:
            actor, thread = self._issued_to(stream), self._thread()
            actor.step()
            event.records.append(Record(thread, thread.step(), dict(actor.clock)))

    def wait(self, stream: Stream, event: Event) -> None:
        with self.lock:
            self._issued_to(stream).learn(self._passed(event))

    def synchronize(self, awaited: Stream | Event) -> None:
        with self.lock:
            of_stream = isinstance(awaited, Stream)
            passed = self._issued_to(awaited).clock if of_stream else self._passed(awaited)
            self._thread().learn(passed)

    def elapsed_ms(self, earlier: Event, later: Event) -> float:
        with self.lock:
            for event in (earlier, later):
                clock, passed = self._thread().clock, self._passed(event)
                if not passed or any(time > clock.get(actor, 0) for actor, time in passed.items()):
                    self._tell("the time of an event is read too early")
        return 0.0

    def _passed(self, event: Event) -> Clock:
        """Return the operations that certainly precede the end of this thread's wait for the event.

        The thread may not see records of the event that it does not follow.
        """
        clock = self._thread().clock
        seen = [each for each in event.records if each.time <= clock.get(each.thread, 0)]
        event.records = event.records[-8:]
        return seen[-1].passed if seen else {}

    def told(self) -> Clock:
        with self.lock:
            thread = self._thread()
            thread.step()
            return dict(thread.clock)

    def learn(self, told: Clock) -> None:
        with self.lock:
            self._thread().learn(told)

    def _thread(self) -> Actor:
        if not hasattr(self._threads, "actor"):
            self._threads.actor = Actor(f"thread {threading.current_thread().name}")
            self._all_threads.append(self._threads.actor)
        actor: Actor = self._threads.actor
        return actor

    def _actor(self, stream: Stream) -> Actor:
        return self._streams.setdefault(stream, Actor(str(stream)))


def _frames() -> tuple[tuple[CodeType, int], ...]:
    """The three innermost of Atom's own."""
    found, frame = list[tuple[CodeType, int]](), sys._getframe(1)
    while frame is not None and len(found) < 3:
        if frame.f_code.co_filename.startswith(ATOM):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Bytes of its storage, from the first to the last."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    return start * tensor.itemsize, (start + last + 1) * tensor.itemsize
