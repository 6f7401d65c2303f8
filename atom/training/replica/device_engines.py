"""Engines and slots of one device, or of a group of devices that runs passes together.

Several devices or groups may add gradients to one host store.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from atom.graph.ir import Program
from atom.graph.program import load
from atom.optim.adamw import AdamW
from atom.optim.optimizer import Optimizer
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.engine_group import EngineGroup
from atom.swap.host_store import HostStore, StateForm
from atom.swap.host_sums import AdditionOrder
from atom.swap.running_pass import Neighbours
from atom.swap.schedule import Arrangement

MAX_MICRO_BATCHES_PER_PASS = 8


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of a replica that decide what its memory holds, and where."""

    optimizer: Optimizer = field(default_factory=AdamW)
    precision: torch.dtype = torch.float32
    arrangement: Arrangement = field(default_factory=Arrangement)
    """Use of the device by the training program, and by an evaluation program with the same cut."""
    micro_batches: int = MAX_MICRO_BATCHES_PER_PASS
    """Largest number of micro-batches in a pass; device memory is planned for this number."""
    state_form: StateForm = StateForm.EXACT
    gradients: torch.dtype = torch.float32
    """Dtype of gradients in the copy to the host and in the host sums: float32 or bfloat16."""


class DeviceEngines:
    """Engines of the training, evaluation and answering programs, which share the slots in turn."""

    def __init__(
        self,
        programs: Sequence[Program],
        answers: bool,
        settings: EngineSettings,
        devices: Sequence[Device],
        store: HostStore,
        order: AdditionOrder | None = None,
    ) -> None:
        """Allocate the slots.

        Args:
            programs: Training program, then the evaluation program if there is one, then the
                answering program if `answers` is True.
            answers: True if the last program is the answering program.
            settings: Precision and use of the device.
            devices: The device, or the devices of a group.
            store: Host store of weights and gradients.
            order: Order in which several devices or groups add gradients; None: there is only one.
        """
        self._devices, self.has_memory = devices, True
        self._slots = [
            DeviceSlots.allocate(
                programs,
                device,
                settings.precision,
                settings.arrangement,
                settings.micro_batches,
                settings.gradients,
                is_only=order is None,
                place=place,
            )
            for place, device in enumerate(devices)
        ]
        if store.on_device is not None:
            self._slots[0].state += store.on_device.memory
        self._new_engine = partial(self._engine, store=store, order=order)
        engines = list(map(self._new_engine, programs))
        self._answering = engines.pop() if answers else None
        self.training, self._evaluation = engines[0], engines[-1]
        self._used = {id(programs[0]): self.training}

    def use(self, program: Program) -> None:
        """Use another program of the same model for training passes and for answers from now on.

        Raises:
            ValueError: The slots are too small for the program.
        """
        if id(program) not in self._used:
            self._used[id(program)] = self._new_engine(program)
        self.training = self._answering = self._used[id(program)]

    def evaluating(self, answers: bool) -> Engine | EngineGroup:
        """Return the engine for passes without gradients.

        Args:
            answers: True: engine of the answering program. False: engine of the evaluation program
                or, if there is none, of the training program.
        """
        engine = self._answering if answers else self._evaluation
        assert engine is not None, "there is a program for it"
        return engine

    def _engine(
        self, program: Program, store: HostStore, order: AdditionOrder | None
    ) -> Engine | EngineGroup:
        each = [
            Engine(
                program,
                load(program, device.torch_device),
                store,
                slots,
                device,
                order=order,
                neighbours=Neighbours(program, place, self._devices),
            )
            for place, (device, slots) in enumerate(zip(self._devices, self._slots, strict=True))
        ]
        return EngineGroup(each, self._devices[0]) if len(each) > 1 else each[0]

    @property
    def name(self) -> str:
        """Names of the devices, for messages."""
        return " + ".join(str(device.torch_device) for device in self._devices)

    def give_back(self) -> None:
        """Free the slots' memory until `take_again`. Call it when no pass is running."""
        if self.has_memory:
            self.has_memory = False
            with ExitStack() as each:  # free the memory of the other devices if one device fails
                for slots, device in zip(self._slots, self._devices, strict=True):
                    each.callback(slots.give_back, device)

    def take_again(self) -> None:
        """Allocate the slots' memory again. Raises an out-of-memory error, and holds none then."""
        if self.has_memory:
            return
        taken = list[tuple[DeviceSlots, Device]]()
        try:
            for slots, device in zip(self._slots, self._devices, strict=True):
                slots.take_again(device)
                taken.append((slots, device))
        except BaseException:
            for slots, device in taken:
                slots.give_back(device)
            raise
        self.has_memory = True
