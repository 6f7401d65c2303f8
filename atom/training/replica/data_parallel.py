"""Passes on several devices at once that share one host store.

In this module, a group of devices that runs one pass together counts as one device.

The micro-batches of a call are split into passes, and each device runs some of the passes.
Gradients are added in the order of the passes (`atom.swap.host_sums.AdditionOrder`), so the result
has the same bits on any number of devices. If a device fails, the other devices compute again the
gradients that have not been added.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from torch import Tensor

from atom.base.clock import Clock
from atom.swap.engine import PassCancelled
from atom.swap.host_sums import AdditionOrder, AdditionStopped, HostSum
from atom.swap.schedule import Observer
from atom.swap.voided import Cause, PassVoided, voided_by_memory
from atom.training.replica.device_engines import DeviceEngines
from atom.training.replica.work_sharing import LeftOut, WorkSharing, is_the_devices, left_out

Batch = Mapping[str, Tensor]
Stop = Callable[[], bool]


class DataParallel:
    """Devices of one replica; splits passes among them and excludes devices that fail.

    Used by one thread at a time, unless a method says otherwise.
    """

    def __init__(
        self,
        devices: Sequence[DeviceEngines],
        order: AdditionOrder,
        clock: Clock,
        on_message: Callable[[str], None],
    ) -> None:
        """Begin with all devices in use.

        Args:
            devices: Engines of each device.
            order: Order in which gradients of the devices are added.
            clock: Time source.
            on_message: Receives a message when a device is excluded and when it is used again.
        """
        self._names = _names([each.name for each in devices])
        self._failed = dict[int, LeftOut]()
        """Latest failure of each device that has failed, by device number."""
        self._devices, self._order, self._clock = devices, order, clock
        self._on_message = on_message
        self._sharing = WorkSharing(len(devices), clock)
        self.left_out: Mapping[int, LeftOut] = {}
        """Excluded devices by device number.

        The mapping is replaced, never changed, so any thread may read it.
        """
        self._next = 0
        """Number of the first pass of the next call."""
        self._passes = range(0)
        """Numbers of the passes of the latest call."""
        self._begun = set[int]()
        """Devices whose engines have begun a pass of the latest call."""
        self._lost = False
        """True if gradients counted before the latest call were lost."""

    @property
    def at_work(self) -> list[int]:
        """Numbers of the devices that are not excluded."""
        return [n for n in range(len(self._devices)) if n not in self.left_out]

    @property
    def devices(self) -> dict[str, str | None]:
        """Devices by name; the value is the error of an excluded device, or None."""
        out = self.left_out
        return {name: out[n].why if n in out else None for n, name in enumerate(self._names)}

    @property
    def touched(self) -> bool:
        """True if the gradient sums may hold a part of the latest call, or have lost earlier ones.

        See `Engine.touched`.
        """
        return self._lost or self._any_added()

    @property
    def leaving(self) -> bool:
        """True if gradients of the latest call were sent to the host sums. Thread-safe."""
        sent = (self._devices[n].training.leaving for n in list(self._begun))
        return self._any_added() or any(sent)

    def train(
        self,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        at_once: int,
        should_stop: Stop,
        first: bool,
        on_added: Callable[[Sequence[HostSum]], None] | None,
        observer: Observer | None,
    ) -> list[float]:
        """Run forward and backward of the micro-batches; see `ReplicaEngines.train`.

        The observer receives the events of one pass, of the first device in use.
        """
        starts = range(0, len(batches), at_once)
        if first:
            self._passes = range(0)
            self._break_off()
        self._begun, self._lost = set(), False
        self._passes = range(self._next, self._next + len(starts))
        self._next = self._passes.stop

        def job(device: int, number: int, broken: Stop) -> tuple[list[float], float]:
            place = number - self._passes.start
            some = slice(starts[place], starts[place] + at_once)
            engine = self._devices[device].training
            watched = device == self.at_work[0] and device not in self._begun
            engine.observer = observer if watched else None

            def stop() -> bool:
                self._begun.add(device)
                return broken() or should_stop()

            losses = engine.run_pass(
                batches[some],
                seeds[some],
                stop,
                first and place == 0,
                on_added if number == self._passes[-1] else None,
                number,
            )
            return losses, self._order.waited_s(number)

        losses = dict[int, list[float]]()
        while missing := [n for n in self._passes if n not in losses]:
            found, failures = self._sharing.run(self.at_work, missing, job, self._stop)
            losses |= found
            if failures:
                try:
                    self._recover(failures, first, should_stop)
                except BaseException:
                    self._break_off()
                    raise
                losses = {n: each for n, each in losses.items() if self._all_added(n)}
        return [loss for number in self._passes for loss in losses[number]]

    def wait_added(self) -> None:
        """Wait until the gradients of all passes so far have been added.

        Raises:
            PassVoided: Some gradients were lost with a device.
            Exception: The failure of the device, if no other device can go on.
        """
        late = self._forget()
        if not self._all_added(self._next - 1):
            self._void(late)

    def _stop(self) -> None:
        """Stop adding gradients of the latest call; earlier gradients are still added."""
        self._order.stop(self._passes.start)

    def _recover(
        self, failures: Mapping[int, BaseException], first: bool, should_stop: Stop
    ) -> None:
        """Exclude the failed devices, so that the others can compute the missing passes.

        Raises: PassVoided if counted gradients were lost; PassCancelled; or the failure, if no
        device can go on.
        """
        late = self._forget()
        if self._order.is_torn or not (first or self._all_added(self._passes.start - 1)):
            self._lost = True
            self._void({**failures, **late})
        self._leave_out(failures)
        self._leave_out(late)
        if should_stop():  # its answer may have changed: more gradients may have been added since
            raise PassCancelled("the pass was cancelled")
        self._order.go_on()

    def _forget(self) -> dict[int, BaseException]:
        """Wait until no gradients are in flight; return the failures of devices that lost some."""
        late = ((number, each.training.forget()) for number, each in enumerate(self._devices))
        return {number: failure for number, failure in late if failure is not None}

    def _void(self, failures: Mapping[int, BaseException]) -> NoReturn:
        """Report that counted gradients are lost; repeated until a pass starts new sums.

        Raises: PassVoided, or the failure if no other device can go on.
        """
        failure = self._order.failure
        assert failure is not None, "a pass without a failure is added by now"
        with voided_by_memory():
            self._leave_out(failures)
        raise PassVoided(Cause.DEVICE, left_out(failure, None, 0.0).why) from failure

    def _break_off(self) -> None:
        """Discard all gradients of the passes so far that have not been added."""
        self._lost |= self._any_added()
        self._stop()
        self._forget()
        self._order.go_on(self._next)
        self._passes = range(self._next, self._next)

    def evaluate(
        self, batches: Sequence[Batch], at_once: int, should_stop: Stop, answers: bool
    ) -> list[Tensor]:
        """Run the forward of the micro-batches; see `ReplicaEngines.evaluate`."""
        starts = range(0, len(batches), at_once)

        def job(device: int, place: int, broken: Stop) -> tuple[list[Tensor], float]:
            some = batches[starts[place] : starts[place] + at_once]
            engine = self._devices[device].evaluating(answers)
            return engine.evaluate(some, lambda: broken() or should_stop()), 0.0

        found = dict[int, list[Tensor]]()
        while missing := [n for n in range(len(starts)) if n not in found]:
            more, failures = self._sharing.run(self.at_work, missing, job)
            found |= more
            self._leave_out(failures)
            if failures and should_stop():
                raise PassCancelled("the pass was cancelled")
        return [each for place in range(len(starts)) for each in found[place]]

    # ---- devices that fail

    def _leave_out(self, failures: Mapping[int, BaseException]) -> None:
        """Exclude the failed devices.

        Raises: a failure that is not a device's fault, or that leaves no device in use.
        """
        for number, failure in failures.items():
            if number in self.left_out or isinstance(failure, PassCancelled | AdditionStopped):
                continue
            if not is_the_devices(failure) or self.at_work == [number]:
                raise failure
            self.fail(number, failure)

    def fail(self, number: int, failure: BaseException) -> None:
        """Exclude a device for a time, and free its memory."""
        out = left_out(failure, self._failed.get(number), self._clock.now())
        self._failed[number] = out
        self.left_out = {**self.left_out, number: out}
        with suppress(Exception):  # the device may have disappeared
            self._devices[number].give_back()
        self._on_message(f"{self._names[number]} is excluded for {out.wait_s:.0f} s: {out.why}")

    def take_again(self) -> None:
        """Allocate freed memory of all devices in use, and of excluded ones that are due again.

        Raises:
            Exception: The failure of the last remaining device.
        """
        now = self._clock.now()
        due = [n for n, out in self.left_out.items() if now >= out.again_at]
        for number in [*due, *self.at_work]:
            try:
                self._devices[number].take_again()
            except Exception as failure:
                if not is_the_devices(failure) or self.at_work in ([], [number]):
                    raise
                self.fail(number, failure)
                continue
            if number in due:
                self.left_out = {n: out for n, out in self.left_out.items() if n != number}
                self._on_message(f"{self._names[number]} is used again")

    def _any_added(self) -> bool:
        adding = self._devices[0].training.adding
        return any(self._order.is_added(each, self._passes.start) for each in adding)

    def _all_added(self, number: int) -> bool:
        adding = self._devices[0].training.adding
        return all(self._order.is_added(each, number) for each in adding)


def _names(given: Sequence[str]) -> list[str]:
    """Return the names, with a number appended to each name that occurs more than once."""
    return [
        f"{name} ({n})" if given.count(name) > 1 else name for n, name in enumerate(given, start=1)
    ]
