"""An engine over the hand-written program, ready to run."""

from collections.abc import Sequence

import torch
from hand_written_program import compile_by_hand, initial_value
from torch import Tensor

from atom.swap.device import CpuDevice
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine, Observer
from atom.swap.host_store import HostStore


class EngineRig:
    """Everything that an engine needs, with the program's own first values."""

    def __init__(
        self,
        cut: Sequence[Sequence[str]],
        precision: torch.dtype = torch.float32,
        device: CpuDevice | None = None,
        observer: Observer | None = None,
        gradients: torch.dtype = torch.float32,
    ) -> None:
        self.cut = cut
        self.program, self.classes = compile_by_hand(cut, dropout=0.1)
        self.device = device or CpuDevice()
        self.store = HostStore.allocate(self.program.layout, precision, gradients=gradients)
        for spec in self.program.layout.specs:
            self.parameter(spec.name).copy_(initial_value(spec.name, spec.shape))
        self.store.round_master()
        slots = DeviceSlots.allocate([self.program], self.device, precision, gradients=gradients)
        self.engine = Engine(
            self.program, self.classes, self.store, slots, self.device, observer=observer
        )

    def parameter(self, name: str) -> Tensor:
        """Its master weights, live. Call `store.round_master` after a change."""
        return self.program.layout.view(self.store.master, name)
