"""The optimizer's step on background threads, while the next pass already runs.

Parts are updated in the order in which the next forward needs them. A part may be read as soon as
it is done (`atom.swap.host_store.Readiness`). The gradient and its norm are final before a step
begins.

The gradient may be the same arena that the next pass adds to, as long as no caller clears it. A
sub-model's gradients leave the device after its backward, which follows its load, and the load
waited until the step had updated every part of these parameters.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

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
from atom.swap.host_kernels import host_kernels
from atom.swap.host_store import HostStore, Readiness, StepFailed
from atom.swap.schedule import Observer, OptimizerStep

ALL_CORES = 8  # a machine with up to this many threads uses all of them for a step

Update = Callable[[Part, Tensor, StepTerms], None]
"""Function that changes one part, given its slice of the gradient, as `Optimizer.update` does."""


class Stepper:
    """Runner of the optimizer's steps of one store, one at a time.

    A step that fails leaves the store inconsistent: every later step raises StepFailed until
    `discard`. One thread at a time may call the methods; `wait` may be called from any thread.
    """

    def __init__(
        self,
        store: HostStore,
        optimizer: Optimizer,
        clock: Clock,
        sub_models: Sequence[SubModel] = (),
        observer: Observer | None = None,
    ) -> None:
        """Prepare the parts of the store.

        Args:
            store: Host arenas that the steps change.
            optimizer: Rule of the update.
            clock: Clock of the times that the observer gets.
            sub_models: Sub-models whose share of a step is reported.
            observer: Gets the time span of each sub-model's share, on the step's threads.

        Raises:
            MismatchError: The host kernels have not been compiled.
        """
        host_kernels()
        self._store = store
        self._optimizer = optimizer
        self._parts = parts_of(optimizer, store)
        """All parts of the store that a step changes."""
        self._device_parts = device_parts(self._parts, store.on_device) if store.on_device else {}
        """Parts that live on the device, by parameter name."""
        self.stretches = [each for part in self._parts for each in without_state(part)]
        """All parts cut into small stretches without optimizer state."""
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
        """Start a step and return; first wait for the previous step.

        All parameters on devices become stale.

        Args:
            gradient: [trained elements] Gradient; the stepper reads it until `wait` returns or
                raises. With `update`, any numbers of this size: that function gets their slices.
            learning_rate: Rate of this step.
            step: Number of the step, from 1.
            coefficient: Factor of the gradient.
            update: Function that replaces the optimizer's update. It must be element-wise; it gets
                the parts in `stretches`, on several threads.

        Raises:
            ValueError: The gradient does not fit the store.
            StepFailed: A step failed, and `discard` was not called since.
        """
        self.wait()
        require_flat(gradient, self._store.gradients.numel())
        self._store.changed()
        terms = StepTerms(step, learning_rate, coefficient)
        parts = self.stretches if update else self._parts
        readiness = Readiness([(part.start, part.stop) for part in parts])
        done = self._with_observer(parts, readiness.finish)
        threads = torch.get_num_threads()
        todo = iter(enumerate(parts))  # shared by the threads: `next` is atomic

        def work() -> None:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)  # PyTorch has one setting per thread
            try:
                with torch.no_grad():
                    for index, part in todo:
                        if self._failure is not None:
                            return
                        self._update(part, gradient, terms, update or self._optimizer.update)
                        done(index)
            except BaseException as failure:  # noqa: BLE001 - `wait` raises it
                self._failure = failure
                readiness.fail(failure)

        self._store.readiness = readiness
        serial = update is None and not self._optimizer.elementwise
        count = 1 if serial else step_threads(parts)
        threads_of_step = [
            threading.Thread(target=work, name="atom-optimizer") for _ in range(count)
        ]
        for thread in threads_of_step:
            thread.start()
        # Assigned after the start, because another thread may join them at once.
        self._threads = threads_of_step

    def wait(self) -> None:
        """Wait until no step is running, and raise StepFailed if the last one failed."""
        self.wait_idle()
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raise StepFailed if the last step failed; do not wait.

        After such a failure only some parameters are updated.
        """
        if self._failure is not None:
            raise StepFailed(self._failure)

    def wait_idle(self) -> None:
        """Wait until no step is running, whether the last one succeeded or failed."""
        for thread in self._threads:
            thread.join()

    def discard(self) -> None:
        """Forget a failed step that has ended, after the store was filled from another source."""
        self._failure = None
        self._store.readiness = None

    def _update(self, part: Part, gradients: FlatNumbers, terms: StepTerms, update: Update) -> None:
        """Update the part where it lives.

        On the device the gradient overwrites the round's sums.
        """
        on_device, name = self._store.on_device, part.parameter.name
        if on_device is None or name not in self._device_parts:
            update(part, part.of(gradients), terms)
            return
        with on_device.lock:
            gradient = part.of(gradients)
            if not on_device.allocated:
                update(part, gradient, terms)
                return
            with on_device.stepping():
                sums = on_device.sums.view(name)
                if gradient.data_ptr() != sums.data_ptr():
                    sums.copy_(gradient)
                update(self._device_parts[name], sums, terms)
            on_device.host_is_stale = True

    def _with_observer(
        self, parts: Sequence[Part], finish: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Return a function to call when a part is done, which also reports to the observer.

        The last part of a sub-model reports its share of the step before it becomes readable, so
        that no pass ends before the report. A share begins when the previous one ended.
        """
        observer, clock = self._observer, self._clock
        if observer is None:
            return finish
        users: dict[str, int] = {}  # parameter → first sub-model that uses it
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
                    observer(OptimizerStep(owner[index]), 0, began, now)
                    began = now
            finish(index)

        return done


def step_threads(parts: Sequence[Part]) -> int:
    """Return the number of threads that share an element-wise step.

    A step is limited by memory bandwidth, which a few cores exhaust. At the same time other threads
    load parameters, launch kernels and add gradients. Therefore a machine with more than
    `ALL_CORES` threads uses half of them for the step, but at least `ALL_CORES`.
    """
    most = torch.get_num_threads()
    most = most if most <= ALL_CORES else max(ALL_CORES, most // 2)
    elements = sum(part.stop - part.start for part in parts)
    return max(1, min(most, -(-elements // PIECE_ELEMENTS)))
