"""Work issued to streams, done in a random order among those orders that its waits allow.

Each stream is a queue. At every issue some heads of queues run that wait for no event: few or many,
from some streams more often than from others. A synchronisation runs all work that it needs. So a
copy may run long before or long after other work of the same time, as on a GPU.
"""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from played_gpu import Event, Machine, Stream, made_of, tensors, written_by
from torch.utils._python_dispatch import _disable_current_modes

HASTES = (0.0, 0.3, 0.8, 0.97)
"""How likely one more operation is carried out at once."""


class Mark:
    """A record of an event: has it passed?"""

    passed = False

    def pass_(self) -> None:
        self.passed = True


class Queued(NamedTuple):
    run: Callable[[], object]
    behind: Mark | None = None
    """Runs when this has passed."""


class RandomOrder(Machine):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._lot = random.Random(seed)
        self._haste = self._lot.choice(HASTES)
        self._queues: dict[Stream, deque[Queued]] = {}
        self._eagerness: dict[Stream, float] = {}

    def run(self, stream: Stream, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = written_by(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:  # drawn when issued, as on a GPU
            drawn = func(torch.empty_like(args[0]), *args[1:], **kwargs)
            func, args, kwargs = torch.ops.aten.copy_.default, (args[0], drawn), {}
        given, named = _as_it_is(args), _as_it_is(kwargs)
        if written:
            self.launch(stream, partial(func, *given, **named))
            return written[0] if func._schema.returns else None
        result = func(*args, **kwargs)  # looks as it will
        if not tensors(result):
            self.synchronize(stream)
            return func(*args, **kwargs)
        made = made_of(result, tensors((args, kwargs)))
        for tensor in made:
            tensor.untyped_storage().fill_(0)
        if made and "empty" not in str(func):
            places = _as_it_is(made)

            def fill() -> None:
                for place, number in zip(places, tensors(func(*given, **named)), strict=True):
                    place.copy_(number)

            self.launch(stream, fill)
        return result

    def launch(self, stream: Stream, loop: Callable[[], object]) -> None:
        self._queue(stream, Queued(loop))

    def touched(self, *given: Any) -> None:
        while self._lot.random() < self._haste and self._run_one():
            pass

    def record(self, event: Event, stream: Stream) -> None:
        with self.lock:
            event.records = [Mark()]
            self._queue(stream, Queued(event.records[0].pass_))

    def wait(self, stream: Stream, event: Event) -> None:
        with self.lock:
            for mark in event.records:
                self._queue(stream, Queued(lambda: None, mark))

    def synchronize(self, awaited: Stream | Event) -> None:
        with self.lock:
            while not self._is_done(awaited):
                assert self._run_one(), "streams wait for each other"

    def _is_done(self, awaited: Stream | Event) -> bool:
        if isinstance(awaited, Stream):
            return not self._queues.get(awaited)
        return all(mark.passed for mark in awaited.records)

    def _queue(self, stream: Stream, operation: Queued) -> None:
        if stream not in self._queues:
            self._queues[stream] = deque()
            self._eagerness[stream] = self._lot.choice([0.03, 0.3, 1.0])
        self._queues[stream].append(operation)

    def _run_one(self) -> bool:
        """False if there is none that may run."""
        first = [(stream, queue[0].behind) for stream, queue in self._queues.items() if queue]
        heads = [stream for stream, behind in first if behind is None or behind.passed]
        if not heads:
            return False
        (chosen,) = self._lot.choices(heads, [self._eagerness[stream] for stream in heads])
        with _disable_current_modes(), torch.no_grad():
            self._queues[chosen].popleft().run()
        return True


def _as_it_is(tree: Any) -> Any:
    """Return the structure with the present memory of its tensors.

    The tensors themselves may get other memory later.
    """
    if isinstance(tree, torch.Tensor):
        return tree.data
    if isinstance(tree, tuple | list):
        return [_as_it_is(each) for each in tree]
    if isinstance(tree, dict):
        return {name: _as_it_is(each) for name, each in tree.items()}
    return tree
