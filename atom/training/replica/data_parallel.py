"""Passes on several devices at once, on one store. A group that runs passes together is one device
here.

The micro-batches of a call are cut into passes as one device would run them, and each device takes
some. Gradients land in the order of the passes (`atom.swap.landing_order`), so a call gives the
same bits on any number of devices. When a device fails, what has not landed is computed again by
the others.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from torch import Tensor

from atom.base.clock import Clock
from atom.swap.engine import Engine, Observer, PassCancelled
from atom.swap.engine_group import EngineGroup
from atom.swap.host_sums import HostSum
from atom.swap.landing_order import LandingOrder, LandingStopped
from atom.swap.voided import Cause, PassVoided, voided_by_memory
from atom.training.replica.device_engines import DeviceEngines
from atom.training.replica.work_sharing import (
    LeftOut,
    WorkSharing,
    is_the_devices,
    left_out,
)

Batch = Mapping[str, Tensor]
Stop = Callable[[], bool]


class DataParallel:
    """The devices of one replica: which of them work, and what of their passes has landed. Used by
    one thread at a time, unless said otherwise."""

    def __init__(
        self,
        devices: Sequence[DeviceEngines],
        order: LandingOrder,
        clock: Clock,
        told: Callable[[str], None],
    ) -> None:
        """`told`: of devices that are left out, and that are back, in words."""
        self._names = _names([each.name for each in devices])
        self._failed = dict[int, LeftOut]()
        """The last failure of each."""
        self._devices, self._order, self._clock, self._told = devices, order, clock, told
        self._sharing = WorkSharing(len(devices), clock)
        self.left_out: Mapping[int, LeftOut] = {}
        """By number. Replaced, never changed: from any thread."""
        self._next = 0
        """The number of the first pass of the next call."""
        self._passes = range(0)
        """Of the latest call."""
        self._begun = set[int]()
        """Devices whose engines have begun a pass of it."""
        self._lost = False
        """What was counted before it did not land."""

    @property
    def at_work(self) -> list[int]:
        """The devices that are not left out."""
        return [n for n in range(len(self._devices)) if n not in self.left_out]

    @property
    def devices(self) -> dict[str, str | None]:
        """As `ReplicaEngines.devices`."""
        out = self.left_out
        return {name: out[n].why if n in out else None for n, name in enumerate(self._names)}

    @property
    def touched(self) -> bool:
        """As `Engine.touched`, of the latest call."""
        return self._lost or self._landed_any()

    @property
    def leaving(self) -> bool:
        """As `Engine.leaving`. From any thread."""
        sent = (self._devices[n].training.leaving for n in list(self._begun))
        return self._landed_any() or any(sent)

    def train(
        self,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        at_once: int,
        should_stop: Stop,
        first: bool,
        landed: Callable[[Sequence[HostSum]], None] | None,
        observer: Observer | None,
    ) -> list[float]:
        """As `Engine.run_pass`, `at_once` micro-batches in each pass. One pass of the first device
        at work is observed."""
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
                landed if number == self._passes[-1] else None,
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
                losses = {n: each for n, each in losses.items() if self._has_landed(n)}
        return [loss for number in self._passes for loss in losses[number]]

    def landed(self) -> None:
        """As `Engine.landed`, whatever has become of the devices. Raises: as `_void`."""
        late = self._forget()
        if not self._has_landed(self._next - 1):
            self._void(late)

    def _stop(self) -> None:
        """What was counted before the latest call goes on landing."""
        self._order.stop(self._passes.start)

    def _recover(
        self, failures: Mapping[int, BaseException], first: bool, should_stop: Stop
    ) -> None:
        """What is missing may be computed then. Raises: the failure that keeps all from it."""
        late = self._forget()
        if self._order.is_torn or not (first or self._has_landed(self._passes.start - 1)):
            self._lost = True
            self._void({**failures, **late})
        self._leave_out(failures)
        self._leave_out(late)
        if should_stop():  # asked again: something may have landed since
            raise PassCancelled("the pass was cancelled")
        self._order.go_on()

    def _forget(self) -> dict[int, BaseException]:
        """Whatever is on its way has landed then, or never will. The devices that kept it from
        that."""
        late = ((number, each.training.forget()) for number, each in enumerate(self._devices))
        return {number: failure for number, failure in late if failure is not None}

    def _void(self, failures: Mapping[int, BaseException]) -> NoReturn:
        """What was counted has not landed, and is lost: it says so until a pass is the first again.
        Raises: PassVoided; what keeps the other devices from going on."""
        failure = self._order.failure
        assert failure is not None, "else it has landed by now"
        with voided_by_memory():
            self._leave_out(failures)
        raise PassVoided(Cause.DEVICE, left_out(failure, None, 0.0).why) from failure

    def _break_off(self) -> None:
        """Nothing of the passes so far lands any more."""
        self._lost |= self._landed_any()
        self._stop()
        self._forget()
        self._order.go_on(self._next)
        self._passes = range(self._next, self._next)

    def evaluate(
        self, batches: Sequence[Batch], at_once: int, should_stop: Stop, answers: bool
    ) -> list[Tensor]:
        """As `ReplicaEngines.evaluate`."""
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
        """Raises: a failure that is not a device's, or that leaves no device at work."""
        for number, failure in failures.items():
            if number in self.left_out or isinstance(failure, PassCancelled | LandingStopped):
                continue
            if not is_the_devices(failure) or self.at_work == [number]:
                raise failure
            self.fail(number, failure)

    def fail(self, number: int, failure: BaseException) -> None:
        """This device is left out for a time."""
        out = left_out(failure, self._failed.get(number), self._clock.now())
        self._failed[number] = out
        self.left_out = {**self.left_out, number: out}
        with suppress(Exception):  # it may be gone altogether
            self._devices[number].give_back()
        self._told(f"{self._names[number]} is left out for {out.wait_s:.0f} s: {out.why}")

    def take_again(self) -> None:
        """Memory for all devices whose time it is. Raises: what keeps the last one from it."""
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
                self._told(f"{self._names[number]} is back")

    @property
    def _engine(self) -> Engine | EngineGroup:
        return self._devices[0].training

    def _landed_any(self) -> bool:
        return any(self._order.has_landed(s, self._passes.start) for s in self._engine.lands)

    def _has_landed(self, number: int) -> bool:
        return all(self._order.has_landed(s, number) for s in self._engine.lands)


def _names(given: Sequence[str]) -> list[str]:
    """Those that are there more than once are numbered."""
    return [
        f"{name} ({n})" if given.count(name) > 1 else name for n, name in enumerate(given, start=1)
    ]
