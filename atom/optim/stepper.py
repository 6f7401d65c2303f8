"""The optimizer's step on threads of its own, under the pass that needs what it makes.

Parts are updated in the order in which the next forward needs them, and each may be read as soon as
it is done (`atom.swap.readiness`). The gradient and its norm are final before a step begins.

The gradient may even be the arena that the next pass's gradients go to, as long as nobody clears
that arena: a sub-model's gradients leave after its backward, which came after its load, and that
load waited for every part of the parameters whose gradients they are.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from atom.base.clock import Clock
from atom.graph.ir import SubModel
from atom.optim.gradients import FlatNumbers, require_flat
from atom.optim.optimizer import (
    PIECE_ELEMENTS,
    Optimizer,
    Part,
    StepTerms,
    device_parts,
    parts_of,
    without_state,
)
from atom.swap.engine import Observer
from atom.swap.host_kernels import host_kernels
from atom.swap.host_store import HostStore
from atom.swap.readiness import Readiness, StepFailed
from atom.swap.schedule import OptimizerStep

ALL_CORES = 8  # so many may all be taken for a step

Update = Callable[[Part, Tensor, StepTerms], None]
"""What a step does to one part, given its part of the gradient: as `Optimizer.update`."""


class Stepper:
    """Takes the steps of one store, one at a time.

    A step that breaks off leaves the store torn: nothing goes on until `discard`. Calls come from
    one thread at a time, those to `wait` from any.
    """

    def __init__(
        self,
        store: HostStore,
        optimizer: Optimizer,
        clock: Clock,
        sub_models: Sequence[SubModel] = (),
        observer: Observer | None = None,
    ) -> None:
        """`observer` is told, from the threads that step, of the share of each of the
        `sub_models`.

        Raises: MismatchError when the host kernels have not been compiled.
        """
        host_kernels()
        self._store = store
        self._optimizer = optimizer
        self._parts = parts_of(optimizer, store)
        """Of the store: all that a step changes."""
        self._device_parts = device_parts(self._parts, store.on_device) if store.on_device else {}
        """Of these, what lives on the device, by parameter."""
        self.stretches = [each for part in self._parts for each in without_state(part)]
        """The same, in small parts that have no state."""
        self._sub_models = sub_models
        self._clock = clock
        self._observer = observer
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def begin(
        self,
        gradient: FlatNumbers,
        learning_rate: float,
        step: int,
        coefficient: float = 1.0,
        update: Update | None = None,
    ) -> None:
        """Starts a step and returns. What was loaded is stale. Waits for the step before.

        `gradient`: [trained elements], times `coefficient`; it belongs to the stepper until `wait`
        returns or raises. `step` counts from 1. `update`: what is done to each part, if not the
        optimizer's step: element-wise, given one of `stretches`, on several threads.

        Raises: ValueError for a gradient that does not fit; StepFailed while torn.
        """
        self.wait()
        require_flat(gradient, self._store.gradients.numel())
        self._store.changed()
        terms = StepTerms(step, learning_rate, coefficient)
        parts = self.stretches if update else self._parts
        readiness = Readiness([(part.start, part.stop) for part in parts])
        done = self._observed(parts, readiness.finish)
        threads = torch.get_num_threads()
        todo = iter(enumerate(parts))  # shared: `next` is one step of the interpreter

        def work() -> None:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)  # PyTorch counts them per thread
            try:
                self._work(todo, gradient, terms, update or self._optimizer.update, done)
            except BaseException as failure:  # noqa: BLE001 - whoever waits for it hears of it
                self._failure = failure
                readiness.fail(failure)

        self._store.readiness = readiness
        together = update is None and not self._optimizer.elementwise
        count = 1 if together else step_threads(parts)
        threads_of_step = [
            threading.Thread(target=work, name="atom-optimizer") for _ in range(count)
        ]
        for thread in threads_of_step:
            thread.start()
        self._threads = threads_of_step  # now that whoever waits, from any thread, may join them

    def wait(self) -> None:
        """Returns when no step is under way and the store is whole. Raises: StepFailed."""
        self.rest()
        self.require_whole()

    def require_whole(self) -> None:
        """Does not wait. Raises: StepFailed when the last step broke off: some parameters are
        updated, others are not."""
        if self._failure is not None:
            raise StepFailed(self._failure)

    def rest(self) -> None:
        """Returns when no step is under way, whatever became of it."""
        for thread in self._threads:
            thread.join()

    def discard(self) -> None:
        """Forgets a step that broke off, and has ended: the store was filled from elsewhere."""
        self._failure = None
        self._store.readiness = None

    @torch.no_grad()
    def _work(
        self,
        todo: Iterator[tuple[int, Part]],
        gradients: FlatNumbers,
        terms: StepTerms,
        update: Update,
        done: Callable[[int], None],
    ) -> None:
        for index, part in todo:
            if self._failure is not None:
                return
            self._update(part, gradients, terms, update)
            done(index)

    def _update(self, part: Part, gradients: FlatNumbers, terms: StepTerms, update: Update) -> None:
        """Where the part is. On the device its gradient takes the place of the round's sums."""
        on_device, name = self._store.on_device, part.parameter.name
        if on_device is None or name not in self._device_parts:
            update(part, part.of(gradients), terms)
            return
        with on_device.lock:
            given = part.of(gradients)
            if not on_device.allocated:
                update(part, given, terms)
                return
            with on_device.stepping():
                sums = on_device.sums.view(name)
                if given.data_ptr() != sums.data_ptr():
                    sums.copy_(given)
                update(self._device_parts[name], sums, terms)
            on_device.ahead = True

    def _observed(
        self, parts: Sequence[Part], finish: Callable[[int], None]
    ) -> Callable[[int], None]:
        """What a thread calls when a part is done: it tells the observer of the last part of each
        sub-model, before a pass can end with it. A share begins when the one before it ended."""
        observer, clock = self._observer, self._clock
        if observer is None:
            return finish
        users: dict[str, int] = {}  # by parameter: the first sub-model that uses it
        for sub_model in reversed(self._sub_models):
            names = (self._store.layout.whole_name(name) for _, name in sub_model.parameters)
            users.update(dict.fromkeys(names, sub_model.index))
        owner = [users[part.parameter.name] for part in parts]
        left, lock, began = Counter(owner), threading.Lock(), clock.now()

        def done(index: int) -> None:
            nonlocal began
            with lock:
                left[owner[index]] -= 1
                if not left[owner[index]]:
                    now = clock.now()
                    observer(OptimizerStep(owner[index]), began, now)
                    began = now
            finish(index)

        return done


def step_threads(parts: Sequence[Part]) -> int:
    """How many threads share an element-wise step. Others are left to PyTorch's own threads.

    A step waits for memory, and a few cores ask for all that memory gives. Meanwhile others load,
    launch and add gradients: beyond eight threads, half of the cores are left to them.
    """
    most = torch.get_num_threads()
    most = most if most <= ALL_CORES else max(ALL_CORES, most // 2)
    elements = sum(part.stop - part.start for part in parts)
    return max(1, min(most, -(-elements // PIECE_ELEMENTS)))
