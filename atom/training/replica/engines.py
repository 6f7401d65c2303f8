"""How one model goes through one device: engines and slots. The device's memory may be given back
while its owner wants it.

What is counted and what is trained is on the host, in the store, and stays as it is.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from atom.base.errors import AtomError
from atom.graph.ir import Program
from atom.graph.program import load
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.device import Device
from atom.swap.device_kernels import device_kernels
from atom.swap.device_slots import DeviceSlots, users_of_parameters
from atom.swap.engine import Engine, PassCancelled
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from atom.swap.voided import is_out_of_memory
from atom.training.replica.update_rule import EveryStep, UpdateRule

MAX_MICRO_BATCHES_PER_PASS = 8


@dataclass(frozen=True)
class ReplicaSettings:
    rate: RateSettings
    optimizer: Optimizer = field(default_factory=AdamW)
    clip_norm: float | None = None
    precision: torch.dtype = torch.float32
    arrangement: Arrangement = field(default_factory=Arrangement)
    """How the training program uses the device, and the evaluation program if it is cut alike."""
    micro_batches: int = MAX_MICRO_BATCHES_PER_PASS
    """The most that a pass may accumulate: device memory has been reckoned for as many."""
    dropout_seed: int = 0
    """Should differ from peer to peer. Says nothing about the initial weights."""
    state_form: StateForm = StateForm.EXACT
    gradients: torch.dtype = torch.float32
    """In which numbers they leave the device and are summed: float32, or bfloat16."""
    update_rule: Callable[..., UpdateRule] = EveryStep
    """What a round averages, and what follows from it: an `UpdateRule`'s class, or that with its
    options."""


class DeviceTaken(AtomError):
    """The memory was given back, and somebody else has it now: try again later."""


class ReplicaEngines:
    """Both engines use the same store and slots, in turn. On the replica's thread, unless said
    otherwise."""

    training: Engine
    evaluation: Engine
    """The training one, if there is no program for it."""
    answering: Engine | None
    """Of a program that gives something else than the loss, if there is one."""

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
        answering: Program | None = None,
    ) -> None:
        """Allocates everything, the host's store too. Raises: as `Replica` does."""
        self._device = device
        self._in_use = threading.Lock()
        self._preempted = self._given_back = False
        programs = [each for each in (program, evaluation, answering) if each is not None]
        _require_one_model(programs, settings.precision)
        kept = optimizer_state(settings.optimizer, program.layout, settings.state_form)
        trained = trained_parameters(program, settings.arrangement)
        self.store = HostStore.allocate(
            program.layout,
            settings.precision,
            device.host_memory,
            settings.state_form,
            settings.gradients,
            kept,
            moves_state=bool(trained),
        )
        factories = [load(each, device.torch_device) for each in programs]
        slots = DeviceSlots.allocate(
            programs,
            device,
            settings.precision,
            settings.arrangement,
            settings.micro_batches,
            settings.gradients,
        )
        if trained:
            _require_kernels(settings, device.torch_device)
            slots.state += self.store.live_on(device, trained).memory
        engines = [
            Engine(each, made, self.store, slots, device)
            for each, made in zip(programs, factories, strict=True)
        ]
        self.answering = engines.pop() if answering is not None else None
        self.training, self.evaluation, self._slots = engines[0], engines[-1], slots

    @property
    def torch_device(self) -> torch.device:
        return self._device.torch_device

    def landed(self) -> None:
        """Returns when the store has the gradients of all passes so far. Raises: as
        `Engine.landed`."""
        with self._in_use:
            self.training.landed()

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
        if not self._given_back:
            with suppress(Exception):  # the next pass, and who reads the sums, are told
                self.training.landed()
            self._given_back, on_device = True, self.store.on_device
            if on_device is not None:
                on_device.leave()
            self._slots.give_back(self._device)

    def _take_again(self, rest: Callable[[], None]) -> None:
        try:
            if self._given_back:
                on_device = self.store.on_device
                if on_device is not None:
                    rest()
                self._slots.take_again(self._device)
                if on_device is not None:
                    on_device.arrive()
        except Exception as failure:
            if not is_out_of_memory(failure):
                raise
            raise DeviceTaken("another program has the device's memory") from failure
        self._given_back = False


def trained_parameters(program: Program, arrangement: Arrangement) -> frozenset[str]:
    """Those that live on the device."""
    users, by_name = users_of_parameters(program.sub_models), program.layout.by_name
    found = (name for name, using in users.items() if arrangement.trained.issuperset(using))
    return frozenset(name for name in found if not by_name[name].frozen)


def _require_kernels(settings: ReplicaSettings, device: torch.device) -> None:
    """For parameters that live on the device. Raises: ValueError, DeviceError."""
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
