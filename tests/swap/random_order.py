"""What is issued to streams, done in an order drawn by lot from those that its waits allow.

Each stream is a queue. Whenever something is issued, some heads of queues are carried out that wait
for nothing: few or many, of each stream more or less often. Whoever synchronises has done what it
takes. So a copy may come long before or long after what it was issued with, as on a GPU.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from played_gpu import Event, Machine, Stream, Touch, nothing
from torch.utils._python_dispatch import _disable_current_modes

HASTES = (0.0, 0.3, 0.8, 0.97)
"""How likely one more operation is carried out at once."""


@dataclass(eq=False)
class Mark:
    """A record of an event: has it passed?"""

    passed: bool = False

    def pass_(self) -> None:
        self.passed = True


@dataclass(frozen=True)
class Queued:
    run: Callable[[], None]
    behind: Mark | None = None
    """Runs when this has passed."""

    @property
    def may_run(self) -> bool:
        return self.behind is None or self.behind.passed


class RandomOrder(Machine):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._lot = random.Random(seed)
        self._haste = self._lot.choice(HASTES)
        self._queues: dict[Stream, deque[Queued]] = {}
        self._eagerness: dict[Stream, float] = {}

    def issue(
        self,
        stream: Stream | None,
        name: str,
        touches: Sequence[Touch],
        run: Callable[[], None] = nothing,
    ) -> None:
        if stream is not None:
            self._queue(stream, Queued(run))
        while self._lot.random() < self._haste and self._run_one():
            pass

    def record(self, event: Event, stream: Stream) -> None:
        with self.lock:
            event.records = [Mark()]
            self._queue(stream, Queued(event.records[0].pass_))

    def wait(self, stream: Stream, event: Event) -> None:
        with self.lock:
            for mark in event.records:
                self._queue(stream, Queued(nothing, mark))

    def synchronize(self, awaited: Stream | Event) -> None:
        with self.lock:
            if isinstance(awaited, Stream):
                while self._queues.get(awaited):
                    assert self._run_one(), "streams wait for each other"
            else:
                while not all(mark.passed for mark in awaited.records):
                    assert self._run_one(), "streams wait for each other"

    def _queue(self, stream: Stream, operation: Queued) -> None:
        if stream not in self._queues:
            self._queues[stream] = deque()
            self._eagerness[stream] = self._lot.choice([0.03, 0.3, 1.0])
        self._queues[stream].append(operation)

    def _run_one(self) -> bool:
        """False if there is none that may run."""
        heads = [stream for stream, queue in self._queues.items() if queue and queue[0].may_run]
        if not heads:
            return False
        (chosen,) = self._lot.choices(heads, [self._eagerness[stream] for stream in heads])
        with _disable_current_modes(), torch.no_grad():
            self._queues[chosen].popleft().run()
        return True
