"""How one model goes through its devices: engines and slots. The devices' memory may be given back
while their owner wants it.

What is counted and what is trained is on the host, in the store, and stays as it is.
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
from atom.swap.arrangement import Arrangement
from atom.swap.device import Device
from atom.swap.device_kernels import device_kernels
from atom.swap.device_slots import users_of_parameters
from atom.swap.engine import Observer, PassCancelled
from atom.swap.host_store import HostStore
from atom.swap.host_sums import HostSum
from atom.swap.landing_order import LandingOrder
from atom.swap.voided import is_out_of_memory
from atom.training.replica.data_parallel import DataParallel
from atom.training.replica.device_engines import DeviceEngines
from atom.training.replica.settings import ReplicaSettings


class DeviceTaken(AtomError):
    """The memory was given back, and somebody else has it now: try again later."""


class ReplicaEngines:
    """The engines of all devices. On the replica's thread, unless said otherwise."""

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        devices: Sequence[Device],
        clock: Clock,
        answering: Program | None = None,
        told: Callable[[str], None] = lambda words: None,
    ) -> None:
        """Allocates everything, the host's store too. Raises: as `Replica` does."""
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
        order = LandingOrder(clock) if len(groups) > 1 else None
        self._each = [
            DeviceEngines(programs, answering is not None, settings, group, self.store, order)
            for group in groups
        ]
        self._parallel = DataParallel(self._each, order, clock, told) if order else None
        self.training = self._each[0].training
        """The first device's, or group's."""

    @property
    def at_work(self) -> int:
        """How many devices, or groups, run passes of their own. From any thread."""
        return 1 if self._parallel is None else len(self._parallel.at_work)

    @property
    def devices(self) -> Mapping[str, str | None]:
        """The devices, or groups, and why those that failed are not at work now. From any
        thread."""
        return {self._each[0].name: None} if self._parallel is None else self._parallel.devices

    # ---- passes, while the devices are in use

    def train(
        self,
        batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        at_once: int,
        should_stop: Callable[[], bool],
        first: bool,
        landed: Callable[[Sequence[HostSum]], None] | None = None,
        loss_scale: float = 1.0,
        observer: Observer | None = None,
    ) -> list[float]:
        """As `Engine.run_pass`. `at_once`: micro-batches that go through one device together.
        `loss_scale`, `observer`: as the engine has them."""
        for each in self._each:
            each.training.loss_scale = loss_scale
        if self._parallel is not None:
            parallel, told = self._parallel, (landed, observer)
            return parallel.train(batches, seeds, at_once, should_stop, first, *told)
        self.training.observer = observer
        return self.training.run_pass(batches, seeds, should_stop, first, landed)

    def evaluate(
        self,
        batches: Sequence[Mapping[str, Tensor]],
        at_once: int,
        should_stop: Callable[[], bool],
        answers: bool = False,
    ) -> list[Tensor]:
        """As `Engine.evaluate`; `answers`: by the program that gives them."""
        if self._parallel is None:
            return self._each[0].evaluating(answers).evaluate(batches, should_stop)
        return self._parallel.evaluate(batches, at_once, should_stop, answers)

    @property
    def touched(self) -> bool:
        """As `Engine.touched`."""
        return (self._parallel or self.training).touched

    @property
    def leaving(self) -> bool:
        """As `Engine.leaving`. From any thread."""
        return (self._parallel or self.training).leaving

    def landed(self) -> None:
        """Returns when the store has the gradients of all passes so far. Raises: as
        `Engine.landed`."""
        with self._in_use:
            (self._parallel or self.training).landed()

    # ---- the device's memory

    @contextmanager
    def using(self, rest: Callable[[], None]) -> Iterator[None]:
        """Wraps a pass: within, the device has what it needs. `rest` is called before its memory is
        taken again: it returns when no step is under way. Raises: PassCancelled while preempted;
        DeviceTaken."""
        with self._in_use:
            if self._preempted:
                raise PassCancelled("the device is not to be used now")
            self._take_again(rest)
            try:
                yield
            finally:
                if self._preempted:
                    self._give_back()

    def preempt(self, wait_s: float) -> bool:
        """From any thread: the memory is given back as soon as nobody is `using` it, until
        `resume`. Returns whether that was within `wait_s`."""
        self._preempted = True
        if not self._in_use.acquire(timeout=wait_s):
            return False
        try:
            self._give_back()
        finally:
            self._in_use.release()
        return True

    def resume(self) -> None:
        """From any thread."""
        self._preempted = False

    def _give_back(self) -> None:
        with suppress(Exception):  # the next pass, and who reads the sums, are told
            (self._parallel or self.training).landed()
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
    """Those that live on the device."""
    users, by_name = users_of_parameters(program.sub_models), program.layout.by_name
    found = (name for name, using in users.items() if arrangement.trained.issuperset(using))
    return frozenset(name for name in found if not by_name[name].frozen)


def _require_kernels(settings: ReplicaSettings, devices: Sequence[Device]) -> None:
    """For parameters that live on the device. Raises: ValueError, DeviceError."""
    if len(devices) > 1:
        raise ValueError("nothing is trained on one of several devices")
    device = devices[0].torch_device
    if not settings.optimizer.steps_on_devices or settings.gradients != torch.float32:
        raise ValueError("nothing is trained on the device with this optimizer or these gradients")
    if device.type != "cpu":
        device_kernels(device)


def _require_one_model(programs: Sequence[Program], precision: torch.dtype) -> None:
    for program in programs:
        if program.layout != programs[0].layout:
            raise ValueError("the programs for training and evaluation are of different models")
        if program.parameter_dtype != precision:
            raise ValueError(f"traced in {program.parameter_dtype}, to be run in {precision}")
