"""Engines and slots that move one model through the devices of a machine.

Device memory can be freed on demand, for example while the machine's owner needs the device. The
counted gradients and the trained state stay in the host store.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from atom.base.clock import Clock
from atom.base.errors import AtomError
from atom.graph.ir import Program
from atom.optim.optimizer import optimizer_state
from atom.swap.device import Device
from atom.swap.device_kernels import device_kernels
from atom.swap.device_slots import users_of_parameters
from atom.swap.engine import Engine, PassCancelled
from atom.swap.engine_group import EngineGroup
from atom.swap.host_store import HostStore
from atom.swap.host_sums import AdditionOrder, HostSum
from atom.swap.schedule import Arrangement, Observer
from atom.swap.voided import is_out_of_memory
from atom.training.replica.data_parallel import DataParallel
from atom.training.replica.device_engines import DeviceEngines, EngineSettings


class DeviceTaken(AtomError):
    """Error raised if freed device memory is now used by another program; a retry may succeed."""


class ReplicaEngines:
    """Engines of all devices. Used on the replica's thread, unless a method says otherwise."""

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: EngineSettings,
        devices: Sequence[Device],
        clock: Clock,
        answering: Program | None = None,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Allocate the host store and the slots on the devices.

        Args:
            program: Training program.
            evaluation: Program for validation; None: the training program is used.
            settings: Settings of the run and of this machine.
            devices: Devices; each group of `settings.arrangement.devices` runs one pass together.
            clock: Time source.
            answering: Program whose outputs `evaluate` returns for `answers`, if any.
            on_message: Receives a message when a device fails and when it is used again.

        Raises: as `Replica` does.
        """
        self._in_use = threading.Lock()
        self._preempted = False
        programs = [each for each in (program, evaluation, answering) if each is not None]
        _require_one_model(programs, settings.precision)
        kept = optimizer_state(settings.optimizer, program.layout, settings.state_form)
        trained = trained_parameters(program, settings.arrangement)
        self.store = HostStore.allocate(
            program.layout,
            settings.precision,
            devices[0].host_memory,
            settings.state_form,
            settings.gradients,
            kept,
            moves_state=bool(trained),
        )
        if trained:
            _require_kernels(settings, devices)
            self.store.live_on(devices[0], trained)
        groups = _groups(devices, settings.arrangement.devices)
        order = AdditionOrder(clock) if len(groups) > 1 else None
        self._each = [
            DeviceEngines(programs, answering is not None, settings, group, self.store, order)
            for group in groups
        ]
        self._parallel = DataParallel(self._each, order, clock, on_message) if order else None
        self._used = program

    @property
    def training(self) -> Engine | EngineGroup:
        """Training engine of the first device or device group."""
        return self._each[0].training

    def use(self, program: Program) -> None:
        """Use another program of the same model for training passes and for answers from now on.

        Call the method between passes.

        Raises:
            ValueError: The slots are too small for the program.
            Exception: Gradients of an earlier pass were lost, as `wait_added`.
        """
        if program is not self._used:
            self.wait_added()
            for engines in self._each:
                engines.use(program)
            self._used = program

    @property
    def at_work(self) -> int:
        """Number of devices or device groups in use. Thread-safe."""
        return 1 if self._parallel is None else len(self._parallel.at_work)

    @property
    def devices(self) -> Mapping[str, str | None]:
        """Devices or device groups by name; the value is the error of a failed one, or None.

        Thread-safe.
        """
        return {self._each[0].name: None} if self._parallel is None else self._parallel.devices

    # ---- passes, while the devices are in use

    def train(
        self,
        batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        at_once: int,
        should_stop: Callable[[], bool],
        first: bool,
        on_added: Callable[[Sequence[HostSum]], None] | None = None,
        loss_scale: float = 1.0,
        observer: Observer | None = None,
    ) -> list[float]:
        """Run forward and backward of the micro-batches on all devices: see `Engine.run_pass`.

        Args:
            batches: Micro-batches.
            seeds: Seed of each micro-batch.
            at_once: Number of micro-batches in one pass of one device.
            should_stop: Polled during the passes; True cancels them.
            first: True if the gradients overwrite the sums instead of being added.
            on_added: Receives the additions that the last pass made (see `Gate`).
            loss_scale: Factor of the loss before the backward.
            observer: Receives the timed events of a pass.
        """
        for each in self._each:
            each.training.loss_scale = loss_scale
        if self._parallel is not None:
            parallel, arguments = self._parallel, (on_added, observer)
            return parallel.train(batches, seeds, at_once, should_stop, first, *arguments)
        self.training.observer = observer
        return self.training.run_pass(batches, seeds, should_stop, first, on_added)

    def evaluate(
        self,
        batches: Sequence[Mapping[str, Tensor]],
        at_once: int,
        should_stop: Callable[[], bool],
        answers: bool = False,
    ) -> list[Tensor]:
        """Run the forward of the micro-batches on all devices: see `Engine.evaluate`.

        Args:
            batches: Micro-batches.
            at_once: Number of micro-batches in one pass of one device.
            should_stop: Polled during the passes; True cancels them.
            answers: True: run the answering program instead of the one for validation.
        """
        if self._parallel is None:
            return self._each[0].evaluating(answers).evaluate(batches, should_stop)
        return self._parallel.evaluate(batches, at_once, should_stop, answers)

    @property
    def touched(self) -> bool:
        """True if the gradient sums may hold a part of the latest pass: see `Engine.touched`."""
        return (self._parallel or self.training).touched

    @property
    def leaving(self) -> bool:
        """True if gradients of the latest pass were sent to the host sums. Thread-safe."""
        return (self._parallel or self.training).leaving

    def wait_added(self) -> None:
        """Wait until the store has the gradients of all passes so far.

        Raises:
            Exception: The error that kept gradients from being added, as `Engine.wait_added`.
        """
        with self._in_use:
            (self._parallel or self.training).wait_added()

    # ---- the device's memory

    @contextmanager
    def using(self, rest: Callable[[], None]) -> Iterator[None]:
        """Wrap a pass: allocate freed device memory again, and keep it until the pass ends.

        Args:
            rest: Waits until no step is under way; called before state returns to a device.

        Raises:
            PassCancelled: The devices are preempted.
            DeviceTaken: Another program has the device memory.
        """
        with self._in_use:
            if self._preempted:
                raise PassCancelled("the device is paused")
            self._take_again(rest)
            try:
                yield
            finally:
                if self._preempted:
                    self._give_back()

    def preempt(self, wait_s: float) -> bool:
        """Free the device memory until `resume`, as soon as no pass is `using` it. Thread-safe.

        Returns:
            True if the memory was freed within `wait_s` seconds.
        """
        self._preempted = True
        if not self._in_use.acquire(timeout=wait_s):
            return False
        try:
            self._give_back()
        finally:
            self._in_use.release()
        return True

    def resume(self) -> None:
        """Allow passes again after `preempt`. Thread-safe."""
        self._preempted = False

    def _give_back(self) -> None:
        with suppress(Exception):  # the next pass, or the next reader of the sums, gets the error
            (self._parallel or self.training).wait_added()
        if self.store.on_device is not None:
            self.store.on_device.leave()
        for each in self._each:
            each.give_back()

    def _take_again(self, rest: Callable[[], None]) -> None:
        on_device = self.store.on_device
        away = None if on_device is None or on_device.allocated else on_device
        try:
            if away is not None:
                rest()
            (self._parallel or self._each[0]).take_again()
            if away is not None:
                away.arrive()
        except Exception as failure:
            if not is_out_of_memory(failure):
                raise
            raise DeviceTaken("another program has the device's memory") from failure


def _groups(devices: Sequence[Device], size: int) -> list[Sequence[Device]]:
    if len(devices) % size:
        raise ValueError(f"{len(devices)} devices cannot run passes in groups of {size}")
    return [devices[start : start + size] for start in range(0, len(devices), size)]


def trained_parameters(program: Program, arrangement: Arrangement) -> frozenset[str]:
    """Return the names of the trained parameters whose state stays on the device."""
    users, by_name = users_of_parameters(program.sub_models), program.layout.by_name
    found = (name for name, using in users.items() if arrangement.trained.issuperset(using))
    return frozenset(name for name in found if not by_name[name].frozen)


def _require_kernels(settings: EngineSettings, devices: Sequence[Device]) -> None:
    """Require that parameters can be trained on the device. Raises: ValueError, DeviceError."""
    if len(devices) > 1:
        raise ValueError("no weights are trained on one of several devices")
    device = devices[0].torch_device
    if not settings.optimizer.steps_on_devices or settings.gradients != torch.float32:
        raise ValueError("no weights are trained on the device with these gradients or optimizer")
    if device.type != "cpu":
        device_kernels(device)


def _require_one_model(programs: Sequence[Program], precision: torch.dtype) -> None:
    for program in programs:
        if program.layout != programs[0].layout:
            raise ValueError("the programs for training and evaluation are of different models")
        if program.parameter_dtype != precision:
            raise ValueError(f"traced in {program.parameter_dtype}, to be run in {precision}")
