"""One device's engines and slots. Those of several devices fill one store."""

from collections.abc import Sequence

from atom.graph.ir import Program
from atom.graph.program import load
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.swap.landing_order import LandingOrder
from atom.training.replica.settings import ReplicaSettings


class DeviceEngines:
    """They use the same slots, in turn."""

    training: Engine
    evaluation: Engine
    """The training one, if there is no program for it."""
    answering: Engine | None
    """Of a program that gives something else than the loss, if there is one."""

    def __init__(
        self,
        programs: Sequence[Program],
        answers: bool,
        settings: ReplicaSettings,
        device: Device,
        store: HostStore,
        order: LandingOrder | None = None,
    ) -> None:
        """Allocates the slots. `programs`: for training; for evaluation, if there is one; for
        answers, if the last one is. `order`: in which gradients of several devices land."""
        self.device, self.has_memory = device, True
        self.slots = DeviceSlots.allocate(
            programs,
            device,
            settings.precision,
            settings.arrangement,
            settings.micro_batches,
            settings.gradients,
            is_only=order is None,
        )
        if store.on_device is not None:
            self.slots.state += store.on_device.memory
        parts = store, self.slots, device
        engines = [
            Engine(each, load(each, device.torch_device), *parts, order=order if first else None)
            for each, first in zip(programs, [True, *[False] * len(programs)], strict=False)
        ]
        self.answering = engines.pop() if answers else None
        self.training, self.evaluation = engines[0], engines[-1]

    def give_back(self) -> None:
        """The slots' memory, until `take_again`. When nothing is under way."""
        if self.has_memory:
            self.has_memory = False
            self.slots.give_back(self.device)

    def take_again(self) -> None:
        """Raises: out of memory, and has none then."""
        if not self.has_memory:
            self.slots.take_again(self.device)
            self.has_memory = True
